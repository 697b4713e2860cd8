// Energy and forces of one molecule under Morse potentials, E = sum over pairs of depth (1 - exp(-width (d - length)))^2,
// and the product of their Jacobian with cotangents. It reads raw pointers: every tensor has to be contiguous.
#include <torch/extension.h>

#include <cmath>
#include <vector>

namespace {

struct Morse {
    double energy;
    double first, second;       // its derivatives in the distance
    double by[3], slope_by[3];  // derivatives of `energy` and of `first` in depth, width and length

    Morse(const double* p, double d) {
        const double depth = p[0], width = p[1], e = std::exp(-width * (d - p[2])), u = 1 - e;
        const double du = width * e;  // in d
        const double u_width = (d - p[2]) * e, du_width = e - width * u_width;
        energy = depth * u * u;
        first = 2 * depth * u * du;
        second = 2 * depth * (du * du - u * width * du);
        by[0] = u * u, by[1] = 2 * depth * u * u_width, by[2] = -first;
        slope_by[0] = 2 * u * du, slope_by[1] = 2 * depth * (u_width * du + u * du_width), slope_by[2] = -second;
    }
};

template <class Visit>
void each_pair(const torch::Tensor& positions, const torch::Tensor& kinds, Visit visit) {
    TORCH_CHECK(positions.is_contiguous() && kinds.is_contiguous(), "pair_potential reads raw memory");
    const double* x = positions.data_ptr<double>();
    const int64_t* kind = kinds.data_ptr<int64_t>();
    for (int64_t i = 0, atoms = positions.size(0); i < atoms; ++i)
        for (int64_t j = i + 1; j < atoms; ++j) {
            if (kind[i * atoms + j] < 0) continue;  // no atom there
            double r[3], d = 0;
            for (int k = 0; k < 3; ++k) r[k] = x[3 * i + k] - x[3 * j + k], d += r[k] * r[k];
            d = std::sqrt(d);
            for (double& component : r) component /= d;
            visit(i, j, kind[i * atoms + j], r, d);
        }
}

}  // namespace

std::vector<torch::Tensor> values(torch::Tensor parameters, torch::Tensor positions, torch::Tensor kinds) {
    TORCH_CHECK(parameters.is_contiguous(), "pair_potential reads raw memory");
    auto energy = torch::zeros({}, positions.options()), forces = torch::zeros_like(positions);
    double *e = energy.data_ptr<double>(), *f = forces.data_ptr<double>();
    each_pair(positions, kinds, [&](int64_t i, int64_t j, int64_t kind, const double* r, double d) {
        const Morse pair(parameters.data_ptr<double>() + 3 * kind, d);
        *e += pair.energy;
        for (int k = 0; k < 3; ++k) f[3 * i + k] -= pair.first * r[k], f[3 * j + k] += pair.first * r[k];
    });
    return {energy, forces};
}

std::vector<torch::Tensor> backward(
    torch::Tensor parameters, torch::Tensor positions, torch::Tensor kinds, torch::Tensor of_energy, torch::Tensor of_forces) {
    TORCH_CHECK(of_energy.is_contiguous() && of_forces.is_contiguous(), "pair_potential reads raw memory");
    auto to_parameters = torch::zeros_like(parameters), to_positions = torch::zeros_like(positions);
    double *gp = to_parameters.data_ptr<double>(), *gx = to_positions.data_ptr<double>();
    const double ge = *of_energy.data_ptr<double>(), *gf = of_forces.data_ptr<double>();
    each_pair(positions, kinds, [&](int64_t i, int64_t j, int64_t kind, const double* r, double d) {
        const Morse pair(parameters.data_ptr<double>() + 3 * kind, d);
        double w[3], along = 0;  // the forces of the pair are -first r on i and its opposite on j
        for (int k = 0; k < 3; ++k) w[k] = gf[3 * j + k] - gf[3 * i + k], along += w[k] * r[k];
        for (int k = 0; k < 3; ++k) {
            gp[3 * kind + k] += ge * pair.by[k] + along * pair.slope_by[k];
            const double g = ge * pair.first * r[k] + pair.second * along * r[k] + pair.first / d * (w[k] - along * r[k]);
            gx[3 * i + k] += g, gx[3 * j + k] -= g;
        }
    });
    return {to_parameters, to_positions};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("values", &values);
    module.def("backward", &backward);
}
