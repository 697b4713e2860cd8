"""Residuals with modules of `torch.nn` inside."""

import torch
from torch import nn

from user_programs.compared import F64, P2, T, Y, case, vector

torch.manual_seed(3)
net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()


@case(P2, T, Y, truth=vector(0.9, 0.8))
def network_inside(p, t, y):
    return net(p[0] * t[:, None])[:, 0] * p[1] - y


drop = nn.Sequential(nn.Linear(1, 3), nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Linear(3, 1)).double().eval()


@case(P2, T, Y)
def dropout_eval(p, t, y):
    return drop(p[0] * t[:, None])[:, 0] * p[1] - y


dt = nn.Dropout(0.5)


@case(P2, T, Y, scipy=False, grad=False)
def dropout_train(p, t, y):
    return dt(p[0] * t) + p[1] - y


gru = nn.GRUCell(1, 2).double()


@case(P2, T, Y)
def gru_cell(p, t, y):
    h = torch.zeros(1, 2, dtype=F64)
    out = []
    for k in range(5):
        h = gru((p[0] * t[k])[None, None], h)
        out.append(h[0, 0] * p[1] - y[k])
    return torch.stack(out)


lstm = nn.LSTM(1, 2, batch_first=True).double()


@case(P2, T, Y)
def lstm_seq(p, t, y):
    return p[1] * lstm((p[0] * t)[None, :, None])[0][0, :, 0] - y


bil = nn.Bilinear(2, 2, 1).double()


@case(P2, T, Y, truth=vector(1.0, 0.5))
def bilinear(p, t, y):
    a = torch.stack([p[0] * t, t], 1)
    b = torch.stack([t, p[1] * t], 1)
    return bil(a, b)[:, 0] - y


mha = nn.MultiheadAttention(2, 1, batch_first=True).double()


@case(P2, T, Y)
def attention(p, t, y):
    x = torch.stack([p[0] * t, p[1] * t], 1)[None, :6]
    return mha(x, x, x)[0][0, :, 0] - y[:6]


conv = nn.Conv1d(1, 2, 3, padding=1).double()


@case(P2, T, Y)
def convolution(p, t, y):
    return p[1] * conv((p[0] * t)[None, None])[0].sum(0) - y


ln = nn.LayerNorm(20).double()


@case(P2, T, Y, truth=vector(0.3, 1.2))
def layernorm(p, t, y):
    return p[0] * ln(torch.exp(p[1] * t)) - y


emb = nn.Embedding(4, 1).double()


@case(P2, T, Y)
def embedding(p, t, y):
    return p[0] * t + p[1] * emb(torch.arange(20) % 4)[:, 0] - y
