// kernel_speed: how fast our own kernels move memory on this machine's GPU, beside a copy by ATen in the same run.
//
//   build/release/kernel_speed [DEVICE]        default: cuda:0; needs a real one
//
// Sizes are those of a step of Qwen2.5-VL-7B in bf16, of more rows where those would lie in a card's L2 cache. Bytes
// are what has to move: each input read once, each output written once.

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
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

#include "vlmtrain/base/first_line.h"
#include "vlmtrain/kernels/activation.h"
#include "vlmtrain/kernels/adamw.h"
#include "vlmtrain/kernels/cross_entropy.h"
#include "vlmtrain/kernels/dequantize.h"
#include "vlmtrain/kernels/dropout.h"
#include "vlmtrain/kernels/gate.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/kernels/norm.h"
#include "vlmtrain/kernels/norm_rotate.h"
#include "vlmtrain/kernels/patches.h"
#include "vlmtrain/kernels/rotate.h"
#include "vlmtrain/memory/device.h"

namespace {

using namespace vlmtrain;

constexpr int64_t kRows = 5632, kManyRows = 8 * kRows, kHidden = 3584, kIntermediate = 18944, kVocabulary = 152064;
constexpr int64_t kTowerIntermediate = 3420;  // of Qwen2.5-VL's tower: rows that are no whole packs of 16 bytes
constexpr int64_t kBf16 = 2, kFp32 = 4;

class Race {
 public:
  explicit Race(at::Device device) : device_(device), marker_(at::zeros({}, at::TensorOptions(device))) {
    const at::Tensor from = draw({kRows, kIntermediate}), to = at::empty_like(from);
    copy_speed_ = speed_of(2 * from.nbytes(), [&] { to.copy_(from); });
    fmt::print("| kernel | MB | µs | GB/s | of a copy's |\n|---|---|---|---|---|\n");
    print("copy", 2 * from.nbytes(), copy_speed_);
  }

  at::TensorOptions options(at::ScalarType dtype) const { return at::TensorOptions(device_).dtype(dtype); }
  at::Tensor draw(at::IntArrayRef sizes, at::ScalarType dtype = at::kBFloat16) const {
    return at::randn(sizes, options(dtype));
  }

  void run(const std::string& name, int64_t bytes, const std::function<void()>& launch) const {
    const auto count = static_cast<size_t>(bytes);
    print(name, count, speed_of(count, launch));
  }

 private:
  void print(const std::string& name, size_t bytes, double speed) const {
    const auto count = static_cast<double>(bytes);
    fmt::print("| {} | {:.0f} | {:.1f} | {:.0f} | {:.2f} |\n", name, count / 1e6, count / speed * 1e6, speed / 1e9,
               speed / copy_speed_);
    std::fflush(stdout);
  }

  /// Bytes a second, the median of rounds.
  double speed_of(size_t bytes, const std::function<void()>& launch) const {
    constexpr int kLaunches = 20, kRounds = 7;
    const auto round = [&] {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kLaunches; ++i) launch();
      static_cast<void>(marker_.item<float>());  // waits for all of them
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
  double copy_speed_ = 1;
};

void gates(const Race& race, const std::string& name, int64_t rows, int64_t features) {
  const at::Tensor x = race.draw({rows, 2 * features}), gradient = race.draw({rows, features});
  const int64_t one = rows * features * kBf16;
  const auto silu = kernels::GateActivation::kSilu;
  race.run(name, 3 * one, [&] { kernels::gate(x, silu); });
  race.run(name + ", backwards", 5 * one, [&] { kernels::gate_backward(gradient, x, silu); });
}

void gates_and_activations(const Race& race) {
  gates(race, "gate", kRows, kIntermediate);
  gates(race, "gate, 3420 features", kManyRows, kTowerIntermediate);
  const at::Tensor gradient = race.draw({kRows, kIntermediate});
  const int64_t one = kRows * kIntermediate * kBf16;
  const auto gelu = kernels::ActivationFunction::kGelu;
  race.run("activation, GELU", 2 * one, [&] { kernels::activate(gradient, gelu); });
  race.run("activation, GELU, backwards", 3 * one, [&] { kernels::activation_backward(gradient, gradient, gelu); });
}

void heads(const Race& race) {
  constexpr int64_t kQueries = 28, kKeys = 4, kFeatures = 128;
  constexpr int64_t kHeads = kQueries + 2 * kKeys;
  const auto parts = [](const at::Tensor& all) {
    return kernels::Heads{all.narrow(1, 0, kQueries), all.narrow(1, kQueries, kKeys),
                          all.narrow(1, kQueries + kKeys, kKeys)};
  };
  const at::Tensor x = race.draw({kManyRows, kHeads, kFeatures}), to = at::empty_like(x), gradient = at::empty_like(x);
  const at::Tensor cos = race.draw({kManyRows, 1, kFeatures / 2}, at::kFloat), sin = at::empty_like(cos).copy_(cos);
  const int64_t head = kManyRows * kFeatures * kBf16, angles = kManyRows * kFeatures * kFp32;
  race.run("rotate", 2 * kHeads * head + angles, [&] { kernels::rotate(parts(to), parts(x), cos, sin, 1); });
  const kernels::HeadNorm norm{race.draw({kFeatures}), race.draw({kFeatures}), kernels::Gain::kWeight, 1e-6};
  at::Tensor reciprocal;
  race.run("norm_rotate", 2 * (kQueries + kKeys) * head + angles,
           [&] { reciprocal = kernels::norm_rotate(parts(to), parts(x), norm, cos, sin); });
  race.run("norm_rotate, backwards", (2 * kHeads + kQueries + kKeys) * head + angles, [&] {
    kernels::norm_rotate_backward(parts(to), parts(gradient), parts(x), reciprocal, norm, cos, sin,
                                  /*weights_wanted=*/true);
  });
}

void norms(const Race& race) {
  const at::Tensor x = race.draw({kManyRows, kHidden}), other = race.draw({kManyRows, kHidden});
  const int64_t one = kManyRows * kHidden * kBf16;
  for (const bool is_centered : {false, true}) {
    const std::string name = is_centered ? "LayerNorm" : "RMSNorm";
    const kernels::Norm by{.weight = race.draw({kHidden}),
                           .bias = is_centered ? race.draw({kHidden}) : at::Tensor(),
                           .is_centered = is_centered,
                           .eps = 1e-6};
    const auto statistics = kernels::norm(x, by).statistics;
    race.run(name, 2 * one, [&] { kernels::norm(x, by); });
    race.run(name + " and residual", 3 * one, [&] { kernels::norm(x, by, other); });
    race.run(name + ", backwards, and the stream's", 4 * one,
             [&] { kernels::norm_backward(other, x, statistics, by, other); });
  }
}

void cross_entropy(const Race& race) {
  constexpr int64_t kLabels = 2048;
  const at::Tensor logits = race.draw({kLabels, kVocabulary});
  const at::Tensor labels = at::randint(kVocabulary, {kLabels}, race.options(at::kLong));
  const int64_t one = kLabels * kVocabulary * kBf16;
  race.run("cross_entropy", one, [&] { kernels::cross_entropy(logits, labels, 1, {}, /*gradient_wanted=*/false); });
  race.run("cross_entropy and gradient", 2 * one,
           [&] { kernels::cross_entropy(logits, labels, 1, {}, /*gradient_wanted=*/true); });
}

void adamw(const Race& race) {
  constexpr int64_t kCount = 100'000'000, kBlocks = (kCount + kernels::kMomentBlock - 1) / kernels::kMomentBlock;
  const at::TensorOptions fp32 = race.options(at::kFloat);
  const at::Tensor codes = at::arange(kernels::kMomentCodes, fp32).div_(kernels::kMomentCodes - 1).repeat({2, 1});
  const kernels::AdamWStep step{.learning_rate = 1e-5,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .epsilon = 1e-8,
                                .skipped = at::zeros({}, fp32),
                                .codes = codes,
                                .bounds = codes + 0.5 / (kernels::kMomentCodes - 1),
                                .seed = 1};
  struct States {
    const char* name;
    at::ScalarType dtype;
    int64_t bytes;  ///< of a moment
  };
  for (const auto& [name, dtype, bytes] :
       {States{"adamw, fp32", at::kFloat, 4}, {"adamw, bf16", at::kBFloat16, 2}, {"adamw, 8 bits", at::kByte, 1}}) {
    kernels::MovedTensor moved{.master = race.draw({kCount}, at::kFloat),
                               .gradient = race.draw({kCount}, at::kFloat),
                               .weight = race.draw({kCount}),
                               .steps = at::ones({}, fp32)};
    for (size_t i = 0; i < 2; ++i) {
      moved.moments[i] = dtype == at::kFloat ? at::zeros({kCount}, fp32)
                                             : at::zeros({kBlocks, kernels::kMomentBlock}, fp32.dtype(dtype));
      if (dtype == at::kByte) moved.absmax[i] = at::zeros({kBlocks}, fp32);
    }
    race.run(name, kCount * (3 * kFp32 + kBf16 + 4 * bytes), [&] { kernels::adamw(std::span(&moved, 1), step); });
  }
}

void weights(const Race& race) {
  const at::Tensor made = at::empty({kIntermediate * kHidden}, race.options(at::kBFloat16));
  const at::TensorOptions bytes = race.options(at::kByte), fp32 = race.options(at::kFloat);
  const int64_t count = made.numel(), super_blocks = count / kernels::kNf4SuperBlock;
  const kernels::Nf4Blocks blocks{.packed = at::randint(256, {count / 2}, bytes),
                                  .absmax = at::randint(256, {super_blocks * kernels::kNf4NestedBlock}, bytes),
                                  .nested_absmax = at::rand({super_blocks}, fp32),
                                  .nested_offset = at::rand({1}, fp32),
                                  .absmax_codes = at::rand({256}, fp32),
                                  .values = at::randn({16}),
                                  .first_super_blocks = {0}};
  race.run("nf4", count / 2 + kBf16 * count, [&] { kernels::nf4_dequantize(made, blocks); });
  const at::Tensor values = at::randint(-127, 128, {kIntermediate, kHidden}, bytes.dtype(at::kChar));
  const at::Tensor absmax = at::rand({kIntermediate}, fp32), matrix = made.view({kIntermediate, kHidden});
  race.run("int8", count + kBf16 * count, [&] { kernels::int8_dequantize(matrix, values, absmax, 1.0 / 127); });
}

void pictures_and_dropout(const Race& race) {
  const image::BytePixels pixels{at::randint(256, {256, 3, 336, 336}, race.options(at::kByte)),
                                 {{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}, 1.0 / 255}};
  race.run("patches", pixels.bytes.numel() * (1 + kBf16), [&] {
    kernels::patches(pixels, image::ImageSize{14, 14}, at::kBFloat16);
  });
  const at::Tensor x = race.draw({kManyRows, kHidden}), made = at::empty_like(x);
  const std::array streams{kernels::DropoutStream{.key = 1, .first_row = 0}};
  const kernels::DropoutDraw draw{.probability = 0.05, .streams = streams};
  const auto one = static_cast<int64_t>(x.nbytes());
  race.run("dropout", 2 * one, [&] { kernels::dropout(made, x, draw); });
  race.run("dropout, backwards", 3 * one, [&] { kernels::dropout_backward(made, x, draw); });
}

int measure(const std::string& name) {
  const at::Device device = memory::open_device(name);
  const auto opened = kernels::open_kernels(device);
  if (!opened.problem.empty()) throw std::runtime_error(opened.problem);
  for (const std::string& wrong : opened.wrong) fmt::print("wrong: {}\n", wrong);
  const at::NoGradGuard no_gradients;
  const Race race(device);
  for (const auto part : {gates_and_activations, heads, norms, cross_entropy, adamw, weights, pictures_and_dropout}) {
    part(race);
    memory::release_unused(device);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return measure(argc > 1 ? argv[1] : "cuda:0");
  } catch (const std::exception& error) {
    fmt::print(stderr, "kernel_speed: {}\n", first_line(error.what()));
    return 1;
  }
}
