// A pose graph solved by Ceres, in the plane or in space: the peer of benchmarks/pose_graph.py.
//
//     ceres_pose_graph GRAPH
//
// GRAPH holds "dimension poses edges", then the poses (x y theta, or x y z qx qy qz qw), then per edge the two poses it
// joins, the measured relative pose and the square root U of its information, row by row. Each line of standard input
// asks for one solve: residual=log|first_order ftol=... steps=... threads=... output=FILE [loss=... scale=...].
//
// The residual is U e, e the tangent vector (translation, rotation) of measured^-1 a^-1 b: the logarithm ("log"), or
// its first order, which is what Ceres' users mostly write: the translation and twice the quaternion's vector part.
// The first pose is held constant.

#include "serving.h"

#include <Eigen/Core>
#include <Eigen/Geometry>
#include <ceres/rotation.h>
#include <cmath>
#include <memory>

namespace {

using serving::Clock;
using serving::Options;

// (1 - (x / 2) cot(x / 2)) / x^2 as a function of x^2.
template <typename T>
T cotangent_remainder(const T& squared) {
  if (squared < T(1e-4)) return T(1.0 / 12) + squared * (T(1.0 / 720) + squared * T(1.0 / 30240));
  const T angle = sqrt(squared);
  return (T(1) - T(0.5) * angle * cos(T(0.5) * angle) / sin(T(0.5) * angle)) / squared;
}

class BetweenInSpace {
 public:
  BetweenInSpace(const double* measured, const double* root, bool logarithm)
      : position_(measured), rotation_(Eigen::Quaterniond(measured + 3).normalized()), root_(root), log_(logarithm) {}

  template <typename T>
  bool operator()(const T* pa, const T* qa, const T* pb, const T* qb, T* out) const {
    using Vector = Eigen::Matrix<T, 3, 1>;
    const Eigen::Map<const Vector> a(pa), b(pb);
    const Eigen::Map<const Eigen::Quaternion<T>> turn_a(qa), turn_b(qb);
    const Eigen::Quaternion<T> back = rotation_.conjugate().template cast<T>();
    const Eigen::Quaternion<T> turn = back * (turn_a.conjugate() * turn_b);
    const Vector moved = back * (turn_a.conjugate() * (b - a) - position_.template cast<T>());
    Eigen::Matrix<T, 6, 1> error;
    if (log_) {
      const T quaternion[4] = {turn.w(), turn.x(), turn.y(), turn.z()};
      Vector w;
      ceres::QuaternionToAngleAxis(quaternion, w.data());
      const Vector across = w.cross(moved);
      error << moved - T(0.5) * across + cotangent_remainder(w.squaredNorm()) * w.cross(across), w;
    } else {
      const T side = turn.w() < T(0) ? T(-2) : T(2);
      error << moved, side * turn.vec();
    }
    Eigen::Map<Eigen::Matrix<T, 6, 1>> residual(out);
    residual = root_.template cast<T>() * error;
    return true;
  }

 private:
  Eigen::Vector3d position_;
  Eigen::Quaterniond rotation_;
  Eigen::Matrix<double, 6, 6, Eigen::RowMajor> root_;
  bool log_;
};

class BetweenInPlane {
 public:
  BetweenInPlane(const double* measured, const double* root, bool logarithm)
      : measured_(measured), root_(root), log_(logarithm) {}

  template <typename T>
  bool operator()(const T* a, const T* b, T* out) const {
    using Vector = Eigen::Matrix<T, 2, 1>;
    const Vector apart(b[0] - a[0], b[1] - a[1]);
    const Vector seen = Eigen::Rotation2D<T>(-a[2]) * apart - measured_.head<2>().template cast<T>();
    Vector moved = Eigen::Rotation2D<T>(T(-measured_[2])) * seen;
    T turn = b[2] - a[2] - T(measured_[2]);
    turn -= T(2 * M_PI) * floor((turn + T(M_PI)) / T(2 * M_PI));
    if (log_) {
      const T half = T(0.5) * turn, along = T(1) - turn * turn * cotangent_remainder(T(turn * turn));
      moved = Vector(along * moved[0] + half * moved[1], along * moved[1] - half * moved[0]);
    }
    const Eigen::Matrix<T, 3, 1> error(moved[0], moved[1], turn);
    Eigen::Map<Eigen::Matrix<T, 3, 1>> residual(out);
    residual = root_.template cast<T>() * error;
    return true;
  }

 private:
  Eigen::Vector3d measured_;
  Eigen::Matrix<double, 3, 3, Eigen::RowMajor> root_;
  bool log_;
};

struct Graph {
  explicit Graph(const std::vector<double>& numbers)
      : dimension(numbers.at(0)), num_poses(numbers.at(1)), num_edges(numbers.at(2)) {
    pose_size = dimension == 3 ? 7 : 3;
    const int tangent = dimension == 3 ? 6 : 3;
    edge_size = 2 + pose_size + tangent * tangent;
    const auto begin = numbers.begin() + 3, middle = begin + num_poses * pose_size;
    if (numbers.end() - middle != static_cast<long>(num_edges) * edge_size) throw std::runtime_error("malformed graph");
    poses.assign(begin, middle);
    edges.assign(middle, numbers.end());
  }
  int dimension, num_poses, num_edges, pose_size, edge_size;
  std::vector<double> poses, edges;
};

void add_edge(ceres::Problem& problem, const Graph& graph, std::vector<double>& poses, int edge, bool logarithm,
              ceres::LossFunction* loss) {
  const double* row = graph.edges.data() + static_cast<size_t>(edge) * graph.edge_size;
  double* a = poses.data() + static_cast<size_t>(row[0]) * graph.pose_size;
  double* b = poses.data() + static_cast<size_t>(row[1]) * graph.pose_size;
  const double *measured = row + 2, *root = measured + graph.pose_size;
  if (graph.dimension == 3) {
    auto* cost = new ceres::AutoDiffCostFunction<BetweenInSpace, 6, 3, 4, 3, 4>(
        new BetweenInSpace(measured, root, logarithm));
    problem.AddResidualBlock(cost, loss, a, a + 3, b, b + 3);
  } else {
    auto* cost = new ceres::AutoDiffCostFunction<BetweenInPlane, 3, 3, 3>(new BetweenInPlane(measured, root, logarithm));
    problem.AddResidualBlock(cost, loss, a, b);
  }
}

void solve(const Graph& graph, const Options& wanted) {
  std::vector<double> poses = graph.poses;
  const bool logarithm = wanted.text("residual") == "log";
  const Clock clock;
  ceres::Problem problem;
  ceres::LossFunction* loss = serving::loss(wanted);  // shared by all edges; the problem owns it
  for (int edge = 0; edge < graph.num_edges; ++edge) add_edge(problem, graph, poses, edge, logarithm, loss);
  if (graph.dimension == 3) {
    auto* manifold = new ceres::EigenQuaternionManifold;
    for (int pose = 0; pose < graph.num_poses; ++pose) {
      double* quaternion = poses.data() + 7 * static_cast<size_t>(pose) + 3;
      Eigen::Map<Eigen::Quaterniond>(quaternion).normalize();
      if (problem.HasParameterBlock(quaternion)) problem.SetManifold(quaternion, manifold);
    }
    problem.SetParameterBlockConstant(poses.data() + 3);
  }
  problem.SetParameterBlockConstant(poses.data());
  const double build_cpu = clock.cpu(), build_wall = clock.wall();

  ceres::Solver::Options options;
  options.linear_solver_type = ceres::SPARSE_NORMAL_CHOLESKY;
  options.max_num_iterations = static_cast<int>(wanted.number("steps"));
  options.function_tolerance = wanted.number("ftol");
  options.num_threads = static_cast<int>(wanted.number("threads"));
  options.logging_type = ceres::SILENT;
  ceres::Solver::Summary summary;
  ceres::Solve(options, &problem, &summary);
  const serving::Times times{build_cpu, build_wall, clock.cpu(), clock.wall()};
  serving::write_numbers(wanted.text("output"), poses);
  serving::report(times, summary);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: ceres_pose_graph GRAPH" << std::endl;
    return 2;
  }
  const Graph graph(serving::read_numbers(arguments[1]));
  return serving::serve([&](const Options& wanted) { solve(graph, wanted); });
}
