"""The page and the table: whole, without a network, with every name and reason escaped."""

import re
from html.parser import HTMLParser

import pytest
import torch

from mslsq.alignment import AlignmentOptionError, align, synthetic
from mslsq.replacing import NotWrittenError

pytest.importorskip("matplotlib")
from mslsq.alignment.report import page
from mslsq.alignment.report.text import escaped, plain, printable

NAMES = ["a$\\frac.png", "<script>alert('1')</script>\x1b[31m\udcff.png", '"><img src=http://x.y/z>']
VOID = {"meta", "img", "input", "path", "use", "link", "br", "image", "rect"}


class Checked(HTMLParser):
    """Tags that match, and all addresses."""

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.tags = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def pair():
    made = synthetic.make_pair("camera", "translation", seed=1, size=96)
    maps = [made.reference, made.moving, torch.zeros(50, 60)]
    return maps, align(maps, model="translation")


def test_the_page_is_whole_and_loads_nothing(tmp_path, pair):
    maps, result = pair
    path = result.report(tmp_path / "report.html", maps, names=NAMES, options={"model": "<b>"})
    text = path.read_text("utf-8")
    found = Checked(text)
    assert found.open == []
    assert all(re.match(r"data:image/(jpeg|png);base64,|#", address) for address in found.addresses)
    assert not re.search(r"url\((?!#)", text)
    assert found.tags.count("script") == 1
    assert "default-src 'none'" in text
    assert "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;" in text and "\x1b" not in text
    assert "&lt;b&gt;" in text and "<b>" not in text
    for part in ("constant where", "PyTorch", "Python", "Checkerboard", "95 %", "Links between maps", 'type="range"'):
        assert part in text


def test_without_the_maps_it_has_tables_and_graphs_alone(tmp_path, pair):
    text = pair[1].report(tmp_path / "report.html").read_text("utf-8")
    assert "<img" not in text and "<svg" in text and "map 1" in text
    assert pair[1].report(tmp_path / "again.html").read_text("utf-8") == text


def test_a_scene_in_which_nothing_is_aligned_has_a_page_with_the_reasons(tmp_path):
    maps = [torch.zeros(64, 64), torch.rand(64, 64)]
    result = align(maps)
    text = result.report(tmp_path / "report.html", maps).read_text("utf-8")
    assert Checked(text).open == []
    assert "0 of 1 maps placed" in text and "no reference" in text.lower() and escaped(result.reasons[1]) in text


def test_other_maps_than_those_of_the_result_are_refused(tmp_path, pair):
    maps, result = pair
    with pytest.raises(AlignmentOptionError, match="this result is of 3 maps, and 2 were given"):
        result.report(tmp_path / "report.html", maps[:2])
    with pytest.raises(AlignmentOptionError, match="map 1 was of 96 rows and 96 columns"):
        result.plot([maps[0], maps[1][:, :50], maps[2]])
    with pytest.raises(AlignmentOptionError, match="names: this result is of 3 maps"):
        result.report(tmp_path / "report.html", names=["a"])
    with pytest.raises(NotWrittenError):
        (tmp_path / "file").touch()
        result.report(tmp_path / "file" / "report.html")


def test_figures_and_the_table_of_a_notebook(tmp_path, pair):
    maps, result = pair
    assert len(result.plot(path=tmp_path / "a.png").axes) == 3
    assert len(result.plot(maps, names=NAMES, path=tmp_path / "b.png").axes) == 5  # four panels and a colour scale
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("a.png", "b.png"))
    table = result._repr_html_()
    assert table.startswith("<table") and table.count("<tr") == 4 and "script" not in table


def test_masks_and_colours_are_shown(tmp_path, pair):
    maps = [raster.expand(3, -1, -1) for raster in (pair[0][0].reshape(1, 96, 96), pair[0][1].reshape(1, 96, 96))]
    mask = torch.ones(96, 96, dtype=torch.bool)
    mask[:20] = False
    result = align(maps, masks=[mask, None], model="translation")
    figure = result.plot([raster.numpy() for raster in maps], masks=[mask.numpy(), None])
    assert torch.isnan(torch.as_tensor(figure.axes[3].images[0].get_array().filled(float("nan")))[:20]).all()


def test_names_are_not_taken_for_mark_up():
    assert printable("a\x00\ud800b\n") == "a\ufffd\ufffdb\n"
    assert plain("$x$") == r"\$x\$"
    assert plain("a\n" + "b" * 100) == "a " + "b" * 45 + "…"
    assert escaped("<a href='x'>&\"") == "&lt;a href=&#x27;x&#x27;&gt;&amp;&quot;"


def test_of_too_many_maps_the_least_sure_have_pictures_and_all_their_line(tmp_path, pair, monkeypatch):
    monkeypatch.setattr(page, "MOST_SHEETS", 1)
    maps = [pair[0][0], pair[0][1], pair[0][1] + 0.1 * torch.randn(96, 96, generator=torch.Generator().manual_seed(0))]
    result = align(maps, model="translation", joint=False)
    assert result.aligned == [0, 1, 2] and result.detail[2] < result.detail[1]
    text = result.report(tmp_path / "report.html", maps, names=["a", "clear", "noisy"]).read_text("utf-8")
    assert "Pictures of 1 of 2 maps" in text
    assert "<summary>noisy" in text and "<summary>clear" not in text and "1 clear" in text


@pytest.mark.slow
def test_a_scene_of_twenty_maps_keeps_to_its_size(tmp_path):
    made = synthetic.make_pair("camera", "translation", seed=1, size=128)
    generator = torch.Generator().manual_seed(0)
    noisy = [made.moving + 0.1 * torch.randn(128, 128, generator=generator) for _ in range(19)]
    maps = [made.reference, *noisy]
    result = align(maps, model="translation", joint=False)
    assert len(result.aligned) == 20
    path = result.report(tmp_path / "report.html", maps)
    assert path.stat().st_size < page.PICTURES_BYTES + 20 * 40_000
