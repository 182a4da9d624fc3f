#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "engine/optimizer/compressed_states.h"
#include "engine/small_parameters.h"
#include "engine/stored_tensors.h"
#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/nn/weights/quantized_weight.h"

namespace vlmtrain::engine {
namespace {

const at::TensorOptions kOptions;
constexpr int64_t kChunkBlocks = 3;

at::Tensor make_skip_flag(bool skip) {
  return at::full({}, skip, at::kBool);
}

/// Reference values of bitsandbytes (tests/parity/reference/modules/optimizer_8bit.py).
at::Tensor reference(const std::string& name) {
  static const io::SafetensorsFile file(std::filesystem::path(VLMTRAIN_SOURCE_DIR) /
                                        "tests/parity/data/optimizer_8bit.safetensors");
  return file.tensor(name).clone();
}

class EightBitCodes : public testing::TestWithParam<std::string> {
 protected:
  at::Tensor expected(const std::string& part) const { return reference(GetParam() + "." + part); }
};

TEST_P(EightBitCodes, MatchBitsandbytes) {
  const at::Tensor values = expected("values");
  const int64_t blocks = values.size(0);
  const int64_t moment = GetParam().find("squares") == std::string::npos ? 0 : 1;
  const MomentTables tables(OptimizerStateDtype::k8Bit, kOptions);
  StateMemory memory(kOptions, /*is_on_host=*/false);
  const auto moments = make_moments(OptimizerStateDtype::k8Bit, blocks + 1, tables, memory);
  const ChunkBuffers buffers =
      ChunkBuffers({.state_dtype = OptimizerStateDtype::k8Bit}, blocks + 1, kOptions).narrow_blocks(blocks);
  buffers.values.fill_(7.0).select(0, moment).copy_(values);
  moments->compress(1, buffers, make_skip_flag(false));
  const auto compressed = moments->state(moment, 1, blocks);
  EXPECT_TRUE(at::equal(compressed[0].second, expected("codes")));
  EXPECT_TRUE(at::equal(compressed[1].second, expected("absmax")));
  buffers.values.fill_(7.0);
  moments->decompress(1, buffers);
  EXPECT_TRUE(at::equal(buffers.values.select(0, moment), expected("expanded")));
}

INSTANTIATE_TEST_SUITE_P(Values, EightBitCodes,
                         testing::Values("normal", "spread", "zeros", "tiny", "squares", "spread_squares",
                                         "zero_squares"),
                         [](const auto& instance) { return instance.param; });

TEST(EightBitMap, MatchesBitsandbytes) {
  EXPECT_TRUE(at::equal(nn::make_dynamic_codebook(nn::Signedness::kSigned), reference("map.signed")));
  EXPECT_TRUE(at::equal(nn::make_dynamic_codebook(nn::Signedness::kUnsigned), reference("map.positive")));
}

/// Products and sums are rounded in another order, so a value between two codes may get the other
/// one.
TEST(EightBitStates, MoveWeightsAsBitsandbytes) {
  const at::Tensor start = reference("steps.start");
  nn::ParameterStore store(kOptions);
  const nn::ParameterScope scope(store, nn::Component::kProjector, "steps");
  const at::Tensor weight = scope.add_parameter("weight", {start.size(0) / 32, 32}, nn::InitialValues::zeros());
  weight.detach().view(-1).copy_(start);
  BucketedOptimizer optimizer(
      store,
      {.adamw = {.beta2 = 0.99}, .weight_decay = 0.1, .max_grad_norm = 0, .state_dtype = OptimizerStateDtype::k8Bit});
  for (int step = 0; step < 5; ++step) {
    add_gradient(weight, reference(fmt::format("steps.gradient.{}", step)).view(weight.sizes()));
    optimizer.step({.projector = 1e-2});
    const at::Tensor expected = reference(fmt::format("steps.weight.{}", step));
    const at::Tensor difference = (weight.detach().view(-1) - expected).abs();
    // One step changes a weight by about 1e-2.
    EXPECT_LT(difference.mean().item<double>(), 1e-6) << "step " << step;
    EXPECT_LT(difference.max().item<double>(), 1e-3) << "step " << step;
  }
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : read_tensors(optimizer.state())) state[name] = tensor;
  for (const std::string moment : {"first", "second"}) {
    const at::Tensor expected = reference("steps." + moment + "_codes").view(-1);
    const at::Tensor codes = state.at(moment + "_moment.steps.weight").view(-1).narrow(0, 0, expected.size(0));
    EXPECT_LE((codes != expected).sum().item<int64_t>(), 4) << moment;
    const at::Tensor scale = reference("steps." + moment + "_absmax");
    const at::Tensor actual = state.at(moment + "_moment_absmax.steps.weight");
    EXPECT_LT(((actual - scale) / scale).abs().max().item<double>(), 1e-5) << moment;
  }
}

TEST(OptimizerStateDtype, OfSmallTensorsStayInFp32AndOfEmbeddingsWithEightBits) {
  nn::ParameterStore store(kOptions);
  const nn::ParameterScope scope(store, nn::Component::kLanguageModel, "model");
  scope.add_parameter("small", {5, 819}, nn::InitialValues::ones());  // 4,095 elements
  scope.add_parameter("large", {4096}, nn::InitialValues::ones());
  scope.add_embedding("embedding", {64, 64}, nn::InitialValues::ones());
  const auto dtypes = [&store](OptimizerStateDtype states, bool compresses_embedding_states = false) {
    std::map<std::string, at::ScalarType> actual;
    const OptimizerSettings settings{.state_dtype = states, .compresses_embedding_states = compresses_embedding_states};
    for (const auto& [name, tensor] : read_tensors(BucketedOptimizer(store, settings).state()))
      actual[name] = tensor.scalar_type();
    return actual;
  };
  const auto eight_bit = dtypes(OptimizerStateDtype::k8Bit);
  for (const std::string moment : {"first_moment", "second_moment"}) {
    EXPECT_EQ(eight_bit.at(moment + ".model.small"), at::kFloat);
    EXPECT_EQ(eight_bit.at(moment + ".model.large"), at::kByte);
    EXPECT_EQ(eight_bit.at(moment + "_absmax.model.large"), at::kFloat);
    EXPECT_EQ(eight_bit.at(moment + ".model.embedding"), at::kFloat);
    EXPECT_EQ(dtypes(OptimizerStateDtype::k8Bit, true).at(moment + ".model.embedding"), at::kByte);
    EXPECT_EQ(dtypes(OptimizerStateDtype::kBf16).at(moment + ".model.small"), at::kFloat);
    EXPECT_EQ(dtypes(OptimizerStateDtype::kBf16).at(moment + ".model.embedding"), at::kBFloat16);
    EXPECT_EQ(dtypes(OptimizerStateDtype::kFp32).at(moment + ".model.large"), at::kFloat);
  }
}

TEST(OptimizerStateDtype, WithAnotherTypeAreRejected) {
  nn::ParameterStore store(kOptions);
  const nn::ParameterScope scope(store, nn::Component::kLanguageModel, "model");
  scope.add_parameter("weight", {16, 256}, nn::InitialValues::ones());  // moments have this shape in every format
  std::map<std::string, at::Tensor> saved;
  {
    const BucketedOptimizer fp32(store, {});
    for (const auto& [name, tensor] : read_tensors(fp32.state())) saved[name] = tensor.clone();
  }
  BucketedOptimizer optimizer(store, {.state_dtype = OptimizerStateDtype::kBf16});
  saved["updates"] = at::zeros({}, at::kLong);
  try {
    optimizer.load_state(saved, "run/step-3");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("first_moment.model.weight has a different data type"));
  }
}

/// Returns the positions of several tensors' elements in chunks of few blocks.
TEST(Chunks, CoverTheSelectedTensorsOnce) {
  const std::vector<int64_t> elements{700, 256, 1, 2000, 300};
  const ChunkBuffers buffers({.state_dtype = OptimizerStateDtype::kBf16}, kChunkBlocks, kOptions);
  const BlockLayout layout(elements);
  const std::vector<bool> selected{true, true, false, true, true};
  std::vector<std::vector<int>> coverage;
  for (const int64_t count : elements) coverage.emplace_back(count, 0);
  for (const auto& chunk : layout.make_chunks(selected, buffers)) {
    EXPECT_LE(chunk.num_blocks, kChunkBlocks);
    int64_t end = 0;
    for (const auto& slice : chunk.slices) {
      EXPECT_GE(slice.chunk_offset, end) << "pieces overlap";
      EXPECT_EQ(slice.chunk_offset % kBlockElements, 0);
      end = slice.chunk_offset + slice.count;
      EXPECT_LE(end, chunk.num_blocks * kBlockElements);
      for (int64_t i = 0; i < slice.count; ++i) ++coverage[slice.tensor][static_cast<size_t>(slice.first + i)];
    }
  }
  for (size_t tensor = 0; tensor < coverage.size(); ++tensor) {
    EXPECT_THAT(coverage[tensor], testing::Each(selected[tensor] ? 1 : 0)) << "tensor " << tensor;
  }
}

/// Each element has its own value, exact in bf16, so chunks must return them in place.
TEST(Chunks, KeepElementsApart) {
  const std::vector<int64_t> elements{200, 5, 1000, 256};
  const MomentTables tables(OptimizerStateDtype::kBf16, kOptions);
  const ChunkBuffers buffers({.state_dtype = OptimizerStateDtype::kBf16}, kChunkBlocks, kOptions);
  const BlockLayout layout(elements);
  StateMemory memory(kOptions, /*is_on_host=*/false);
  CompressedStates states(layout, OptimizerStateDtype::kBf16, tables, memory);
  const auto number = [](const ChunkSlice& slice) {
    return (at::arange(slice.first, slice.first + slice.count, at::kFloat) + 7 * static_cast<double>(slice.tensor))
        .remainder(256);
  };
  const std::vector<bool> all(elements.size(), true);
  for (const auto& chunk : layout.make_chunks(all, buffers)) {
    states.decompress(chunk);
    for (const auto& slice : chunk.slices) {
      chunk.get_first_moment(slice).copy_(number(slice));
      chunk.get_second_moment(slice).copy_(number(slice) + 0.5);
    }
    states.compress(chunk, make_skip_flag(false));
  }
  for (const auto& chunk : layout.make_chunks({false, false, true, true}, buffers)) {
    states.decompress(chunk);
    for (const auto& slice : chunk.slices) {
      EXPECT_TRUE(at::equal(chunk.get_first_moment(slice), number(slice)));
      EXPECT_LE((chunk.get_second_moment(slice) - number(slice) - 0.5).abs().max().item<double>(), 0.5);
    }
  }
}

TEST(Bf16States, AreRoundedStochastically) {
  constexpr int64_t kBlocks = 64;
  for (const double sign : {1.0, -1.0}) {
    const MomentTables tables(OptimizerStateDtype::kBf16, kOptions);
    StateMemory memory(kOptions, /*is_on_host=*/false);
    const auto moments = make_moments(OptimizerStateDtype::kBf16, kBlocks, tables, memory);
    const ChunkBuffers buffers({.state_dtype = OptimizerStateDtype::kBf16}, kBlocks, kOptions);
    constexpr double kLower = 1.0, kUpper = 1.0078125, kShare = 0.25;
    const double value = sign * (kLower + kShare * (kUpper - kLower));
    buffers.values.fill_(value);
    moments->compress(0, buffers, make_skip_flag(false));
    const at::Tensor compressed = moments->state(0, 0, kBlocks)[0].second.to(at::kDouble) * sign;
    EXPECT_EQ(((compressed == kLower) | (compressed == kUpper)).sum().item<int64_t>(), compressed.numel());
    // The standard deviation of the mean of 16,384 such samples is 0.0034.
    EXPECT_NEAR((compressed == kUpper).to(at::kDouble).mean().item<double>(), kShare, 0.015);
  }
}

TEST(Bf16States, DecayWithUpdatesBelowTheirPrecision) {
  nn::ParameterStore store(kOptions);
  const nn::ParameterScope scope(store, nn::Component::kProjector, "model");
  const at::Tensor weight = scope.add_parameter("weight", {64, 64}, nn::InitialValues::ones());
  weight.detach().zero_();
  BucketedOptimizer optimizer(store, {.max_grad_norm = 0, .state_dtype = OptimizerStateDtype::kBf16});
  add_gradient(weight, at::full({64, 64}, 1.0));
  optimizer.step({});
  constexpr int kSteps = 300;
  for (int i = 0; i < kSteps; ++i) {
    add_gradient(weight, at::zeros({64, 64}));
    optimizer.step({});
  }
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : read_tensors(optimizer.state())) state[name] = tensor;
  const double mean = state.at("second_moment.model.weight").to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(mean / (0.001 * std::pow(0.999, kSteps)), 1.0, 0.01);
}

TEST(Bf16States, AreRoundedByTheSeed) {
  const auto get_state_after_steps = [](uint64_t seed) {
    at::manual_seed(3);
    Parameters parameters(at::kFloat, /*large=*/true);
    BucketedOptimizer optimizer(parameters.store(), {.state_dtype = OptimizerStateDtype::kBf16, .seed = seed});
    for (uint64_t step = 0; step < 2; ++step) {
      add_gradients(parameters, random_gradients(parameters, step, 1.0));
      optimizer.step({});
    }
    for (const auto& [name, tensor] : read_tensors(optimizer.state())) {
      if (name == "second_moment.vision.large") return tensor.clone();
    }
    return at::Tensor();
  };
  EXPECT_TRUE(at::equal(get_state_after_steps(1), get_state_after_steps(1)));
  EXPECT_FALSE(at::equal(get_state_after_steps(1), get_state_after_steps(2)));
}

}  // namespace
}  // namespace vlmtrain::engine
