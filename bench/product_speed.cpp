// product_speed: GFLOP/s of fp32 matrix products of a CPU training step: as vlmtrain computes them,
// and by oneDNN and MKL alone. Shapes are those of bench/speed.py's model with the given number of
// rows.
//
//   build/release/product_speed [rows]

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>

#include "vlmtrain/nn/layers/matmul.h"

namespace {

using vlmtrain::nn::matmul_transposed;
using vlmtrain::nn::onednn_matmul;

constexpr int kRounds = 7;

struct Layer {
  const char* name;
  int64_t in, out;
};

constexpr Layer kLayers[] = {{"queries, keys, values", 320, 448},
                             {"attention's output", 320, 320},
                             {"gate and up", 320, 1792},
                             {"down", 896, 320},
                             {"vocabulary", 320, 8192}};

double measure_seconds(const std::function<at::Tensor()>& run_matmul) {
  const auto start = std::chrono::steady_clock::now();
  static_cast<void>(run_matmul());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Seconds of vlmtrain, oneDNN and MKL, each the minimum of alternating rounds.
std::array<double, 3> measure_backends(const at::Tensor& a, const at::Tensor& b) {
  const std::array<std::function<at::Tensor()>, 3> backends{
      [&] { return matmul_transposed(a, b); }, [&] { return onednn_matmul(a, b); }, [&] { return at::mm(a, b.t()); }};
  std::array<double, 3> seconds{};
  seconds.fill(std::numeric_limits<double>::infinity());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < backends.size(); ++i) seconds[i] = std::min(seconds[i], measure_seconds(backends[i]));
  }
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t rows = argc > 1 ? std::atol(argv[1]) : 2400;
  const at::NoGradGuard no_gradients;
  fmt::print("{} threads, {} rows\n\n| layer | product | vlmtrain | oneDNN | MKL |\n|---|---|---|---|---|\n",
             at::get_num_threads(), rows);
  double total_flops = 0;
  std::array<double, 3> total_seconds{};
  for (const Layer& layer : kLayers) {
    const at::Tensor x = at::randn({rows, layer.in}), weight = at::randn({layer.out, layer.in});
    const at::Tensor gradient = at::randn({rows, layer.out});
    const struct {
      const char* name;
      at::Tensor a, b;
    } matmuls[] = {{"output", x, weight},
                   {"gradient of the input", gradient, weight.t()},
                   {"gradient of the weight", gradient.t(), x.t()}};
    for (const auto& [name, a, b] : matmuls) {
      const auto seconds = measure_backends(a, b);
      const double flops = 2.0 * static_cast<double>(rows * layer.in * layer.out);
      total_flops += flops;
      for (size_t i = 0; i < total_seconds.size(); ++i) total_seconds[i] += seconds[i];
      fmt::print("| {} | {} | {:.0f} | {:.0f} | {:.0f} |\n", layer.name, name, flops / seconds[0] / 1e9,
                 flops / seconds[1] / 1e9, flops / seconds[2] / 1e9);
    }
  }
  fmt::print("| all | | {:.0f} | {:.0f} | {:.0f} |\n", total_flops / total_seconds[0] / 1e9,
             total_flops / total_seconds[1] / 1e9, total_flops / total_seconds[2] / 1e9);
  return 0;
}
