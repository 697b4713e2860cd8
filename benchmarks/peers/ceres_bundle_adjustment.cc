// A bundle adjustment in BAL's text format solved by Ceres: the peer of benchmarks/bundle_adjustment.py.
//
//     ceres_bundle_adjustment PROBLEM
//
// Each line of standard input asks for one solve: linear_solver=DENSE_SCHUR|SPARSE_SCHUR|ITERATIVE_SCHUR ftol=...
// steps=... threads=... output=FILE [loss=... scale=...]. The camera model is BAL's: P = exp(w) X + t, p = -P_xy / P_z,
// pixel = f (1 + k1 |p|^2 + k2 |p|^4) p.

#include "serving.h"

#include <ceres/rotation.h>

namespace {

using serving::Clock;
using serving::Options;

class Reprojection {
 public:
  explicit Reprojection(const double* pixel) : u_(pixel[0]), v_(pixel[1]) {}

  template <typename T>
  bool operator()(const T* camera, const T* point, T* residual) const {
    T seen[3];
    ceres::AngleAxisRotatePoint(camera, point, seen);
    for (int k = 0; k < 3; ++k) seen[k] += camera[3 + k];
    const T x = -seen[0] / seen[2], y = -seen[1] / seen[2], n = x * x + y * y;
    const T scale = camera[6] * (T(1) + n * (camera[7] + n * camera[8]));
    residual[0] = scale * x - u_;
    residual[1] = scale * y - v_;
    return true;
  }

 private:
  double u_, v_;
};

struct Scene {
  explicit Scene(const std::vector<double>& numbers)
      : cameras(numbers.at(0)), points(numbers.at(1)), observations(numbers.at(2)) {
    const auto begin = numbers.begin() + 3, middle = begin + 4 * static_cast<long>(observations);
    if (numbers.end() - middle != 9L * cameras + 3L * points) throw std::runtime_error("malformed problem");
    seen.assign(begin, middle);
    parameters.assign(middle, numbers.end());
  }
  int cameras, points, observations;
  std::vector<double> seen, parameters;
};

void solve(const Scene& scene, const Options& wanted) {
  std::vector<double> parameters = scene.parameters;
  const Clock clock;
  ceres::Problem problem;
  ceres::LossFunction* loss = serving::loss(wanted);  // shared by all observations; the problem owns it
  auto* ordering = new ceres::ParameterBlockOrdering;
  double* points = parameters.data() + 9 * static_cast<size_t>(scene.cameras);
  for (int row = 0; row < scene.observations; ++row) {
    const double* seen = scene.seen.data() + 4 * static_cast<size_t>(row);
    double* camera = parameters.data() + 9 * static_cast<size_t>(seen[0]);
    double* point = points + 3 * static_cast<size_t>(seen[1]);
    auto* cost = new ceres::AutoDiffCostFunction<Reprojection, 2, 9, 3>(new Reprojection(seen + 2));
    problem.AddResidualBlock(cost, loss, camera, point);
    ordering->AddElementToGroup(point, 0);
    ordering->AddElementToGroup(camera, 1);
  }
  const double build_cpu = clock.cpu(), build_wall = clock.wall();

  ceres::Solver::Options options;
  if (!ceres::StringToLinearSolverType(wanted.text("linear_solver"), &options.linear_solver_type)) {
    throw std::invalid_argument("unknown linear solver " + wanted.text("linear_solver"));
  }
  options.linear_solver_ordering.reset(ordering);
  if (options.linear_solver_type == ceres::ITERATIVE_SCHUR) options.preconditioner_type = ceres::SCHUR_JACOBI;
  options.max_num_iterations = static_cast<int>(wanted.number("steps"));
  options.function_tolerance = wanted.number("ftol");
  options.gradient_tolerance = options.parameter_tolerance = 0;
  options.num_threads = static_cast<int>(wanted.number("threads"));
  options.logging_type = ceres::SILENT;
  ceres::Solver::Summary summary;
  ceres::Solve(options, &problem, &summary);
  const serving::Times times{build_cpu, build_wall, clock.cpu(), clock.wall()};
  serving::write_numbers(wanted.text("output"), parameters);
  serving::report(times, summary);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: ceres_bundle_adjustment PROBLEM" << std::endl;
    return 2;
  }
  const Scene scene(serving::read_numbers(arguments[1]));
  return serving::serve([&](const Options& wanted) { solve(scene, wanted); });
}
