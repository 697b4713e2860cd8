// What the two Ceres programs share: clocks, options given as "key=value", one line of JSON per solve.

#pragma once

#include <ceres/ceres.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace serving {

// Milliseconds of processor time of all threads, and of the wall.
class Clock {
 public:
  Clock() : cpu_(processor()), wall_(std::chrono::steady_clock::now()) {}
  double cpu() const { return processor() - cpu_; }
  double wall() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - wall_).count();
  }

 private:
  static double processor() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return 1e3 * now.tv_sec + 1e-6 * now.tv_nsec;
  }
  double cpu_;
  std::chrono::steady_clock::time_point wall_;
};

class Options {
 public:
  explicit Options(const std::string& line) {
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const size_t at = word.find('=');
      if (at == std::string::npos) throw std::invalid_argument("expected key=value, got " + word);
      values_[word.substr(0, at)] = word.substr(at + 1);
    }
  }
  std::string text(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) throw std::invalid_argument("missing option " + key);
    return found->second;
  }
  double number(const std::string& key) const { return std::stod(text(key)); }

  bool has(const std::string& key) const { return values_.count(key) > 0; }

 private:
  std::map<std::string, std::string> values_;
};

// All numbers of a text file.
inline std::vector<double> read_numbers(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<double> numbers;
  for (double number; file >> number;) numbers.push_back(number);
  return numbers;
}

inline void write_numbers(const std::string& path, const std::vector<double>& numbers) {
  std::ofstream file(path);
  file << std::setprecision(17);
  for (double number : numbers) file << number << '\n';
  if (!file) throw std::runtime_error("cannot write " + path);
}

struct Times {
  double build_cpu, build_wall, cpu, wall;
};

inline void report(const Times& times, const ceres::Solver::Summary& summary) {
  std::ostringstream line;
  line << std::setprecision(17) << "{\"cpu\": " << times.cpu << ", \"wall\": " << times.wall
       << ", \"build_cpu\": " << times.build_cpu << ", \"build_wall\": " << times.build_wall
       << ", \"steps\": " << summary.num_successful_steps + summary.num_unsuccessful_steps - 1
       << ", \"cost\": " << summary.final_cost << ", \"costs\": [";
  for (size_t i = 0; i < summary.iterations.size(); ++i) line << (i ? ", " : "") << summary.iterations[i].cost;
  line << "], \"seconds\": [";
  for (size_t i = 0; i < summary.iterations.size(); ++i) {
    line << (i ? ", " : "") << summary.iterations[i].cumulative_time_in_seconds;
  }
  line << "], \"solver\": \"" << ceres::LinearSolverTypeToString(summary.linear_solver_type_used) << "\"}";
  std::cout << line.str() << std::endl;
}

// One solve per line of standard input, until it ends.
template <typename Solve>
int serve(Solve solve) {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      solve(Options(line));
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
      return 1;
    }
  }
  return 0;
}

// loss=huber|soft_l1|cauchy|arctan|tukey scale=..., in the library's convention: rho(s) = scale^2 rho_1(s / scale^2).
// None where no loss is asked for.
inline ceres::LossFunction* loss(const Options& wanted) {
  if (!wanted.has("loss")) return nullptr;
  const std::string name = wanted.text("loss");
  const double scale = wanted.number("scale");
  if (name == "huber") return new ceres::HuberLoss(scale);
  if (name == "soft_l1") return new ceres::SoftLOneLoss(scale);
  if (name == "cauchy") return new ceres::CauchyLoss(scale);
  if (name == "arctan") return new ceres::ArctanLoss(scale * scale);
  if (name == "tukey") return new ceres::TukeyLoss(scale);
  throw std::invalid_argument("unknown loss " + name);
}

}  // namespace serving
