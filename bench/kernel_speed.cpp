// kernel_speed: memory bandwidth of the custom kernels on this machine's GPU, compared with a copy
// by ATen in the same run.
//
//   build/release/kernel_speed [DEVICE]        default: cuda:0; needs a real GPU
//
// Sizes are those of a training step of Qwen2.5-VL-7B in bf16, with more rows if they would fit in
// the L2 cache. Bytes are the minimum to move: each input read once, each output written once.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/activation.h"
#include "vlmtrain/kernels/adamw.h"
#include "vlmtrain/kernels/cross_entropy.h"
#include "vlmtrain/kernels/dequantize.h"
#include "vlmtrain/kernels/dropout.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/kernels/norm.h"
#include "vlmtrain/kernels/patchify.h"
#include "vlmtrain/kernels/rope.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/host_arena.h"

namespace {

using namespace vlmtrain;

constexpr int64_t kRows = 5632, kManyRows = 8 * kRows, kHidden = 3584, kIntermediate = 18944, kVocabulary = 152064;
constexpr int64_t kTowerIntermediate = 3420;  // of Qwen2.5-VL's tower: rows that are not whole packs of 16 bytes
constexpr int64_t kBf16 = 2, kFp32 = 4;

class KernelBenchmark {
 public:
  explicit KernelBenchmark(at::Device device) : device_(device), marker_(at::zeros({}, at::TensorOptions(device))) {
    const at::Tensor input = sample({kRows, kIntermediate}), output = at::empty_like(input);
    copy_bytes_per_second_ = measure_bytes_per_second(2 * input.nbytes(), [&] { output.copy_(input); });
    fmt::print("| kernel | MB | µs | GB/s | of a copy's |\n|---|---|---|---|---|\n");
    print("copy", 2 * input.nbytes(), copy_bytes_per_second_);
  }

  at::TensorOptions options(at::ScalarType dtype) const { return at::TensorOptions(device_).dtype(dtype); }
  at::Tensor sample(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) const {
    return at::randn(sizes, options(dtype));
  }

  void run(const std::string& name, int64_t bytes, const std::function<void()>& launch) const {
    const auto tensor_bytes = static_cast<size_t>(bytes);
    print(name, tensor_bytes, measure_bytes_per_second(tensor_bytes, launch));
  }

 private:
  void print(const std::string& name, size_t bytes, double bytes_per_second) const {
    const auto count = static_cast<double>(bytes);
    fmt::print("| {} | {:.0f} | {:.1f} | {:.0f} | {:.2f} |\n", name, count / 1e6, count / bytes_per_second * 1e6,
               bytes_per_second / 1e9, bytes_per_second / copy_bytes_per_second_);
    std::fflush(stdout);
  }

  /// Returns bytes per second, the median of rounds.
  double measure_bytes_per_second(size_t bytes, const std::function<void()>& launch) const {
    constexpr int kLaunches = 20, kRounds = 7;
    const auto round = [&] {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kLaunches; ++i) launch();
      static_cast<void>(marker_.item<float>());  // waits for all launches
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kLaunches;
    };
    std::vector<double> seconds(kRounds);
    round();
    std::ranges::generate(seconds, round);
    std::ranges::sort(seconds);
    return static_cast<double>(bytes) / seconds[kRounds / 2];
  }

  at::Device device_;
  at::Tensor marker_;
  double copy_bytes_per_second_ = 1;
};

void benchmark_gated_activation(const KernelBenchmark& benchmark, const std::string& name, int64_t rows,
                                int64_t features) {
  const at::Tensor x = benchmark.sample({rows, 2 * features}), gradient = benchmark.sample({rows, features});
  const int64_t tensor_bytes = rows * features * kBf16;
  const auto silu = kernels::GateActivation::kSilu;
  benchmark.run(name, 3 * tensor_bytes, [&] { kernels::gated_activation(x, silu); });
  benchmark.run(name + ", backwards", 5 * tensor_bytes, [&] { kernels::gated_activation_backward(gradient, x, silu); });
}

void benchmark_activations(const KernelBenchmark& benchmark) {
  benchmark_gated_activation(benchmark, "gated_activation", kRows, kIntermediate);
  benchmark_gated_activation(benchmark, "gated_activation, 3420 features", kManyRows, kTowerIntermediate);
  const at::Tensor gradient = benchmark.sample({kRows, kIntermediate});
  const int64_t tensor_bytes = kRows * kIntermediate * kBf16;
  const auto gelu = kernels::ActivationFunction::kGelu;
  benchmark.run("activation, GELU", 2 * tensor_bytes, [&] { kernels::activate(gradient, gelu); });
  benchmark.run("activation, GELU, backwards", 3 * tensor_bytes,
                [&] { kernels::activation_backward(gradient, gradient, gelu); });
}

void benchmark_rope(const KernelBenchmark& benchmark) {
  constexpr int64_t kQueries = 28, kKeys = 4, kFeatures = 128;
  constexpr int64_t kHeads = kQueries + 2 * kKeys;
  const auto split_heads = [](const at::Tensor& heads) {
    return kernels::QkvHeads{heads.narrow(1, 0, kQueries), heads.narrow(1, kQueries, kKeys),
                             heads.narrow(1, kQueries + kKeys, kKeys)};
  };
  const at::Tensor x = benchmark.sample({kManyRows, kHeads, kFeatures}), output = at::empty_like(x),
                   gradient = at::empty_like(x);
  const at::Tensor cos = benchmark.sample({kManyRows, 1, kFeatures / 2}, at::kFloat),
                   sin = at::empty_like(cos).copy_(cos);
  const int64_t head = kManyRows * kFeatures * kBf16, angles = kManyRows * kFeatures * kFp32;
  benchmark.run("rope", 2 * kHeads * head + angles,
                [&] { kernels::rope(split_heads(output), split_heads(x), cos, sin, 1); });
  const kernels::QkNormParams norm{benchmark.sample({kFeatures}), benchmark.sample({kFeatures}),
                                   kernels::NormGain::kWeight, 1e-6};
  at::Tensor rstd;
  benchmark.run("qk_norm_rope", 2 * (kQueries + kKeys) * head + angles,
                [&] { rstd = kernels::qk_norm_rope(split_heads(output), split_heads(x), norm, cos, sin); });
  benchmark.run("qk_norm_rope, backwards", (2 * kHeads + kQueries + kKeys) * head + angles, [&] {
    kernels::qk_norm_rope_backward(split_heads(output), split_heads(gradient), split_heads(x), rstd, norm, cos, sin,
                                   /*compute_weight_gradients=*/true);
  });
}

void benchmark_norms(const KernelBenchmark& benchmark) {
  const at::Tensor x = benchmark.sample({kManyRows, kHidden}), residual = benchmark.sample({kManyRows, kHidden});
  const int64_t tensor_bytes = kManyRows * kHidden * kBf16;
  for (const bool is_centered : {false, true}) {
    const std::string name = is_centered ? "LayerNorm" : "RMSNorm";
    const kernels::NormParams params{.weight = benchmark.sample({kHidden}),
                                     .bias = is_centered ? benchmark.sample({kHidden}) : at::Tensor(),
                                     .is_centered = is_centered,
                                     .eps = 1e-6};
    const auto statistics = kernels::norm(x, params).statistics;
    benchmark.run(name, 2 * tensor_bytes, [&] { kernels::norm(x, params); });
    benchmark.run(name + " and residual", 3 * tensor_bytes, [&] { kernels::norm(x, params, residual); });
    benchmark.run(name + ", backwards, and the stream's", 4 * tensor_bytes,
                  [&] { kernels::norm_backward(residual, x, statistics, params, residual); });
  }
}

void benchmark_cross_entropy(const KernelBenchmark& benchmark) {
  constexpr int64_t kLabels = 2048;
  const at::Tensor logits = benchmark.sample({kLabels, kVocabulary});
  const at::Tensor labels = at::randint(kVocabulary, {kLabels}, benchmark.options(at::kLong));
  const int64_t tensor_bytes = kLabels * kVocabulary * kBf16;
  benchmark.run("cross_entropy", tensor_bytes,
                [&] { kernels::cross_entropy(logits, labels, 1, {}, /*compute_gradient=*/false); });
  benchmark.run("cross_entropy and gradient", 2 * tensor_bytes,
                [&] { kernels::cross_entropy(logits, labels, 1, {}, /*compute_gradient=*/true); });
  constexpr double kSoftCap = 30;  // Gemma's
  benchmark.run("cross_entropy and gradient, soft cap", 2 * tensor_bytes,
                [&] { kernels::cross_entropy(logits, labels, 1, {}, /*compute_gradient=*/true, kSoftCap); });
}

void benchmark_adamw(const KernelBenchmark& benchmark) {
  constexpr int64_t kCount = 100'000'000,
                    kBlocks = (kCount + kernels::kMomentBlockSize - 1) / kernels::kMomentBlockSize;
  const at::TensorOptions fp32 = benchmark.options(at::kFloat);
  const at::Tensor codes = at::arange(kernels::kNumMomentCodes, fp32).div_(kernels::kNumMomentCodes - 1).repeat({2, 1});
  const kernels::AdamWStep step{.learning_rate = 1e-5,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .epsilon = 1e-8,
                                .skip_flag = at::zeros({}, fp32),
                                .code_values = codes,
                                .rounding_bounds = codes + 0.5 / (kernels::kNumMomentCodes - 1),
                                .seed = 1};
  struct States {
    const char* name;
    at::ScalarType dtype;
    int64_t bytes;  ///< per moment element
  };
  for (const auto& [name, dtype, bytes] :
       {States{"adamw, fp32", at::kFloat, 4}, {"adamw, bf16", at::kBFloat16, 2}, {"adamw, 8 bits", at::kByte, 1}}) {
    kernels::AdamWParameter parameter{.master = benchmark.sample({kCount}, at::kFloat),
                                      .gradient = benchmark.sample({kCount}, at::kFloat),
                                      .weight = benchmark.sample({kCount}),
                                      .steps = at::ones({}, fp32)};
    for (size_t i = 0; i < 2; ++i) {
      parameter.moments[i] = dtype == at::kFloat ? at::zeros({kCount}, fp32)
                                                 : at::zeros({kBlocks, kernels::kMomentBlockSize}, fp32.dtype(dtype));
      if (dtype == at::kByte) parameter.absmax[i] = at::zeros({kBlocks}, fp32);
    }
    benchmark.run(name, kCount * (3 * kFp32 + kBf16 + 4 * bytes),
                  [&] { kernels::adamw(std::span(&parameter, 1), step); });
  }
}

/// The link: copies by the GPU's engines, a kernel that reads and writes in place, and the update of state in
/// host memory. Bytes are those of both directions together.
void benchmark_host_memory(const KernelBenchmark& benchmark) {
  constexpr int64_t kCount = 100'000'000;
  const at::Tensor device_values = benchmark.sample({kCount});
  memory::HostArena arena(device_values.device());
  const auto allocate = [&](at::ScalarType dtype) {
    return arena.view_on_device(arena.allocate({kCount}, dtype, "kernel_speed"));
  };
  const at::Tensor host_values = arena.allocate({kCount}, at::kBFloat16, "kernel_speed");
  const at::Tensor mapped_values = arena.view_on_device(host_values);
  at::Tensor device_copy = at::empty_like(device_values);
  benchmark.run("host memory, copy in", kCount * kBf16, [&] { device_copy.copy_(host_values, /*non_blocking=*/true); });
  benchmark.run("host memory, copy out", kCount * kBf16,
                [&] { host_values.copy_(device_values, /*non_blocking=*/true); });
  benchmark.run("host memory, kernel reads", kCount * kBf16,
                [&] { at::add_out(device_copy, device_values, mapped_values); });
  benchmark.run("host memory, kernel reads and writes", 2 * kCount * kBf16, [&] { mapped_values.mul_(1); });
  const at::TensorOptions fp32 = benchmark.options(at::kFloat);
  const kernels::AdamWStep step{.learning_rate = 1e-5,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .epsilon = 1e-8,
                                .skip_flag = at::zeros({}, fp32),
                                .seed = 1};
  kernels::AdamWParameter parameter{.master = {},
                                    .gradient = benchmark.sample({kCount}, at::kFloat),
                                    .weight = device_values,
                                    .low_bits = allocate(at::kShort),
                                    .steps = at::ones({}, fp32)};
  for (at::Tensor& moment : parameter.moments) moment = allocate(at::kFloat);
  benchmark.run("adamw, low halves and fp32 moments in host memory", 2 * kCount * (kBf16 + 2 * kFp32),
                [&] { kernels::adamw(std::span(&parameter, 1), step); });
}

void benchmark_dequantization(const KernelBenchmark& benchmark) {
  const at::Tensor matrix = at::empty({kIntermediate, kHidden}, benchmark.options(at::kBFloat16));
  const at::TensorOptions bytes = benchmark.options(at::kByte), fp32 = benchmark.options(at::kFloat);
  const int64_t count = matrix.numel(), super_blocks = count / kernels::kNf4SuperBlockSize;
  const kernels::Nf4Weights blocks{.packed_indices = at::randint(256, {count / 2}, bytes),
                                   .absmax = at::randint(256, {super_blocks * kernels::kNf4NestedBlockSize}, bytes),
                                   .nested_absmax = at::rand({super_blocks}, fp32),
                                   .nested_offset = at::rand({1}, fp32),
                                   .absmax_codebook = at::rand({256}, fp32),
                                   .values = at::randn({16}),
                                   .columns = kHidden,
                                   .weights = {{0, 0, kIntermediate}}};
  benchmark.run("nf4", count / 2 + kBf16 * count, [&] { kernels::nf4_dequantize(matrix, blocks); });
  const at::Tensor values = at::randint(-127, 128, {kIntermediate, kHidden}, bytes.dtype(at::kChar));
  const at::Tensor absmax = at::rand({kIntermediate}, fp32);
  benchmark.run("int8", count + kBf16 * count, [&] { kernels::int8_dequantize(matrix, values, absmax, 1.0 / 127); });
}

void benchmark_patchify_and_dropout(const KernelBenchmark& benchmark) {
  const image::ByteImages pixels{at::randint(256, {256, 3, 336, 336}, benchmark.options(at::kByte)),
                                 {{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}, 1.0 / 255}};
  benchmark.run("patchify", pixels.bytes.numel() * (1 + kBf16), [&] {
    kernels::patchify(pixels, image::ImageSize{14, 14}, at::kBFloat16, /*columns=*/592);
  });
  const at::Tensor x = benchmark.sample({kManyRows, kHidden}), result = at::empty_like(x);
  const std::array streams{kernels::DropoutStream{.key = 1, .first_row = 0}};
  const kernels::DropoutParams params{.probability = 0.05, .streams = streams};
  const auto tensor_bytes = static_cast<int64_t>(x.nbytes());
  benchmark.run("dropout", 2 * tensor_bytes, [&] { kernels::dropout(result, x, params); });
  benchmark.run("dropout, backwards", 3 * tensor_bytes, [&] { kernels::dropout_backward(result, x, params); });
}

int run_benchmarks(const std::string& name) {
  const at::Device device = memory::open_device(name);
  const auto status = kernels::open_kernels(device);
  if (!status.unavailable_reason.empty()) throw std::runtime_error(status.unavailable_reason);
  for (const std::string& failure : status.failure_messages) fmt::print("wrong: {}\n", failure);
  const at::NoGradGuard no_gradients;
  const KernelBenchmark benchmark(device);
  for (const auto group :
       {benchmark_activations, benchmark_rope, benchmark_norms, benchmark_cross_entropy, benchmark_adamw,
        benchmark_host_memory, benchmark_dequantization, benchmark_patchify_and_dropout}) {
    group(benchmark);
    memory::empty_cache(device);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_benchmarks(argc > 1 ? argv[1] : "cuda:0");
  } catch (const std::exception& error) {
    fmt::print(stderr, "kernel_speed: {}\n", get_first_line(error.what()));
    return 1;
  }
}
