#include "vlmtrain/planner/rehearsal.h"

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "planner/rehearsal.h"
#include "planner/user_error.h"

namespace vlmtrain::planner {
namespace {

using memory::Component;
using testing::Each;
using testing::ElementsAreArray;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kSteps = 3;

int64_t most_of(const RehearsalDetail& detail, Component component) {
  int64_t most = 0;
  for (const auto& point : detail.timeline) most = std::max(most, bytes_of(point.by_component, component));
  return most;
}

int64_t sum(const memory::ComponentBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

/// Real rehearsals of SmolVLM-256M with images of four tiles and the whole picture.
class RehearsalTest : public testing::Test {
 protected:
  RehearsalRequest request(const Choices& choices, int64_t samples, int64_t steps = kSteps) const {
    return {.choices = choices,
            .steps = std::vector(static_cast<size_t>(steps), std::vector<SampleGroup>{{shape_, samples}}),
            .with_costs = true,
            .with_detail = true,
            .with_timeline = true};
  }

  Outcome rehearse(const Job& job, const Choices& choices, int64_t samples, const std::string& gpu = "h100") const {
    RehearsalProcess process(job, {.gpu = gpu, .memory_bytes = kUnlimited});
    return process.rehearse(request(choices, samples));
  }

  const PresetFolder model_{"smolvlm-256m"};
  const data::SampleShape shape_ = model_.shape({.images = 1, .image_width = 1024, .image_height = 1024});
};

/// Those of a process, as /proc has them.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;
    // id (name) state parent
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string state;
    pid_t found = 0;
    fields >> state >> found;
    if (found == parent) children.push_back(static_cast<pid_t>(std::stol(line)));
  }
  return children;
}

TEST_F(RehearsalTest, WhatASecondWorkerHasBegunIsTheSameAndItMayDie) {
  RehearsalProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const RehearsalRequest one = request(micro_batches_of(1), 4), two = request(micro_batches_of(2), 4);
  const Outcome of_one = process.rehearse(one), of_two = process.rehearse(two);
  process.begin(two);
  EXPECT_EQ(flat(process.rehearse(one)), flat(of_one));
  EXPECT_EQ(flat(process.rehearse(two)), flat(of_two));
  std::vector<pid_t> workers;
  for (const pid_t child : children_of(getpid())) {
    for (const pid_t worker : children_of(child)) workers.push_back(worker);
  }
  if (workers.empty()) GTEST_SKIP() << "one processor has one worker";
  process.begin(two);
  for (const pid_t worker : workers) kill(worker, SIGKILL);
  EXPECT_EQ(flat(process.rehearse(two)), flat(of_two));
  process.begin(one);
  EXPECT_EQ(flat(process.rehearse(one)), flat(of_one));
}

TEST_F(RehearsalTest, IsTheSameEveryTimeInOneProcessAndInANewOne) {
  RehearsalProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const Choices two = micro_batches_of(2);
  const Outcome first = process.rehearse(request(two, 4));
  ASSERT_THAT(first.steps, SizeIs(kSteps));
  // Others between them leave nothing behind.
  process.rehearse(request({.micro_batch_size = 1, .recompute = {5, 9}, .expandable_segments = false}, 3));
  const Outcome again = process.rehearse(request(two, 4));
  const Outcome elsewhere = rehearse(model_.job(), two, 4);
  for (const Outcome* other : {&again, &elsewhere}) {
    EXPECT_EQ(flat(*other), flat(first));
    EXPECT_EQ(other->detail->peak.by_component, first.detail->peak.by_component);
    EXPECT_EQ(other->detail->peak.event, first.detail->peak.event);
    EXPECT_EQ(other->costs->total.launches, first.costs->total.launches);
    EXPECT_EQ(other->costs->total.seconds, first.costs->total.seconds);
    EXPECT_EQ(other->costs->total.bytes_moved, first.costs->total.bytes_moved);
  }
}

/// Its moments are made at the end of the first step, so they lie beside the activations from the second on.
TEST_F(RehearsalTest, TheSecondStepNeedsMoreThanTheFirstAndTheThirdTheSame) {
  const Outcome outcome = rehearse(model_.job(), micro_batches_of(1), 1);
  ASSERT_THAT(outcome.steps, SizeIs(kSteps));
  EXPECT_GT(outcome.steps[1].allocated_bytes, outcome.steps[0].allocated_bytes);
  EXPECT_EQ(outcome.steps[2].allocated_bytes, outcome.steps[1].allocated_bytes);
  EXPECT_EQ(outcome.steps[2].reserved_bytes, outcome.steps[1].reserved_bytes);
  for (const auto& step : outcome.steps) EXPECT_GE(step.reserved_bytes, step.allocated_bytes);
  EXPECT_EQ(outcome.allocation_retries, 0);
  EXPECT_FALSE(outcome.out_of_memory);
}

TEST_F(RehearsalTest, TheComponentsAddUpToTheAllocatorsOwnPeak) {
  for (const auto& [gpu, segments] : {std::pair{"h100", true}, {"h100", false}, {"rtx4090", true}}) {
    SCOPED_TRACE(gpu);
    const Outcome outcome =
        rehearse(model_.job(), {.micro_batch_size = 2, .recompute = {}, .expandable_segments = segments}, 4, gpu);
    const auto& peak = outcome.detail->peak;
    EXPECT_EQ(sum(peak.by_component), peak.allocated_bytes);
    EXPECT_EQ(peak.allocated_bytes, outcome.peaks().allocated_bytes) << "as the allocator's statistics say";
    EXPECT_THAT(peak.by_component, Each(testing::Ge(0)));
    EXPECT_GT(bytes_of(peak.by_component, Component::kWorkspace), 0);
    EXPECT_GT(bytes_of(peak.by_component, Component::kVision), 0);
    EXPECT_GT(bytes_of(peak.by_component, Component::kLanguage), 0);
    EXPECT_LT(bytes_of(peak.by_component, Component::kOther), kMiB) << "nearly everything has a name";
  }
}

TEST_F(RehearsalTest, TheTimelineIsTheLastStep) {
  RehearsalProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  auto ever_less = request(micro_batches_of(3), 3);
  ever_less.steps.push_back({{shape_, 1}});
  const Outcome outcome = process.rehearse(ever_less);
  const auto& timeline = outcome.detail->timeline;
  ASSERT_FALSE(timeline.empty());
  ASSERT_LT(outcome.steps.back().allocated_bytes, outcome.steps[1].allocated_bytes) << "another peak than before";
  int64_t allocated = 0;
  int64_t reserved = 0;
  bool forward = false;
  bool backward = false;
  for (const auto& point : timeline) {
    allocated = std::max(allocated, sum(point.by_component));
    reserved = std::max(reserved, point.reserved_bytes);
    EXPECT_GE(point.reserved_bytes, sum(point.by_component));
    (point.backward ? backward : forward) = true;
  }
  EXPECT_EQ(allocated, outcome.steps.back().allocated_bytes);
  EXPECT_EQ(reserved, outcome.steps.back().reserved_bytes);
  EXPECT_TRUE(forward && backward);
}

TEST_F(RehearsalTest, WhatIsNotAskedForIsNotThere) {
  RehearsalProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  RehearsalRequest bare = request({}, 1);
  const Outcome full = process.rehearse(bare);
  bare.with_costs = bare.with_detail = bare.with_timeline = false;
  const Outcome outcome = process.rehearse(bare);
  EXPECT_FALSE(outcome.costs);
  EXPECT_FALSE(outcome.detail);
  EXPECT_EQ(flat(outcome), flat(full)) << "looking changes nothing";
  bare.with_detail = true;
  EXPECT_THAT(process.rehearse(bare).detail->timeline, IsEmpty());
}

struct ComponentCase {
  const char* name;
  engine::Precision precision;
  models::FrozenParts frozen;
  engine::OptimizerStates states = engine::OptimizerStates::kFp32;

  friend std::ostream& operator<<(std::ostream& out, const ComponentCase& trained) { return out << trained.name; }
};

/// Both moments of a parameter.
int64_t bytes_of_moments(const nn::Parameter& parameter, engine::OptimizerStates states) {
  const int64_t elements = parameter.elements();
  const int64_t blocks = (elements + 255) / 256;
  if (states == engine::OptimizerStates::kBf16 && elements >= 4096) return 2 * blocks * 256 * 2;
  if (states == engine::OptimizerStates::k8Bit && elements >= 4096 && !parameter.is_embedding) {
    return 2 * blocks * (256 + 4);
  }
  return 2 * elements * 4;
}

/// Of each moment values in fp32 and integers, of 16.8 million elements; with 8 bits two numbers a block, and a table
/// of all pairs of codes.
int64_t room_of_chunks(engine::OptimizerStates states) {
  constexpr int64_t kElements = int64_t{16} << 20;
  const int64_t buffers = 2 * kElements * (4 + 4);
  if (states == engine::OptimizerStates::kBf16) return buffers;
  return buffers + 2 * kElements / 256 * (4 + 4) + 2 * 65536 * 8;
}

kernels::KernelSet every_kernel() {
  const auto all = kernels::all_kernels();
  return {all.begin(), all.end()};
}

/// What weights, gradients and optimizer take is known without any rehearsal.
class ComponentsTest : public RehearsalTest, public testing::WithParamInterface<ComponentCase> {};

TEST_P(ComponentsTest, TakeTheirElements) {
  Job job = model_.job();
  job = with_precision(job, GetParam().precision);
  job.frozen = GetParam().frozen;
  job.optimizer.states = GetParam().states;
  job.left_out_kernels = every_kernel();
  const bool has_masters = job.precision != engine::Precision::kFp32;
  const Outcome outcome = rehearse(job, micro_batches_of(1), 1);
  const RehearsalDetail& detail = *outcome.detail;

  const auto built = models::build_model(model_.path(), at::kMeta, engine::dtype_of(job.precision));
  models::freeze(*built, job.frozen);
  int64_t total = 0;
  int64_t trained = 0;
  int64_t tensors = 0;
  int64_t moments = 0;
  for (const auto& parameter : built->parameters().all()) {
    total += parameter.tensor.numel();
    ++tensors;
    if (!parameter.tensor.requires_grad()) continue;
    trained += parameter.tensor.numel();
    moments += bytes_of_moments(parameter, job.optimizer.states);
  }
  EXPECT_EQ(detail.total_elements, total);
  EXPECT_EQ(detail.trained_elements, trained);

  // Each tensor is rounded up to 512 bytes; of a block for large tensors up to 1 MiB may stay unused, but not where
  // segments grow.
  const auto expect_close = [&](Component component, int64_t bytes, int64_t tensors_of_it) {
    const int64_t taken = most_of(detail, component);
    EXPECT_GE(taken, bytes) << memory::name_of(component);
    EXPECT_LE(taken, bytes + 512 * tensors_of_it + kMiB) << memory::name_of(component);
  };
  expect_close(Component::kWeights, total * (has_masters ? 2 : 4), tensors);
  expect_close(Component::kGradients, trained * 4, tensors);
  // Two moments, and masters where the weights have 16 bits. While it steps it takes a little for the norm.
  if (job.optimizer.states != engine::OptimizerStates::kFp32) moments += room_of_chunks(job.optimizer.states);
  expect_close(Component::kOptimizer, trained * (has_masters ? 4 : 0) + moments, 4 * tensors);
}

/// Our own kernel moves compressed states where they lie; ATen's operations take chunks of them out.
TEST_P(ComponentsTest, OwnKernelsTakeNoRoomForChunks) {
  if (GetParam().states == engine::OptimizerStates::kFp32) GTEST_SKIP() << "of fp32 states nobody takes any";
  if (!std::filesystem::exists(std::filesystem::path(VLMTRAIN_BINARY).parent_path() / "libvlmtrain_kernels.so")) {
    GTEST_SKIP() << "own kernels are not built";
  }
  Job job = with_precision(model_.job(), GetParam().precision);
  job.frozen = GetParam().frozen;
  job.optimizer.states = GetParam().states;
  const int64_t own = most_of(*rehearse(job, micro_batches_of(1), 1).detail, Component::kOptimizer);
  job.left_out_kernels = every_kernel();
  const int64_t of_aten = most_of(*rehearse(job, micro_batches_of(1), 1).detail, Component::kOptimizer);
  constexpr int64_t kTables = kMiB;  // of 8 bits: of all pairs of codes
  EXPECT_NEAR(own + room_of_chunks(job.optimizer.states), of_aten, 2 * kTables);
}

INSTANTIATE_TEST_SUITE_P(
    Of, ComponentsTest,
    testing::Values(
        ComponentCase{"Bf16", engine::Precision::kBf16, {}}, ComponentCase{"Fp32", engine::Precision::kFp32, {}},
        ComponentCase{"Fp16", engine::Precision::kFp16, {}},
        ComponentCase{"Bf16States", engine::Precision::kBf16, {}, engine::OptimizerStates::kBf16},
        ComponentCase{"EightBitStates", engine::Precision::kBf16, {}, engine::OptimizerStates::k8Bit},
        ComponentCase{
            "Fp16EightBitStates", engine::Precision::kFp16, {.vision_tower = true}, engine::OptimizerStates::k8Bit},
        ComponentCase{"FrozenTower", engine::Precision::kBf16, {.vision_tower = true}},
        ComponentCase{"FrozenLanguageModel", engine::Precision::kBf16, {.language_model = true}},
        ComponentCase{"ProjectorOnly", engine::Precision::kFp32, {.vision_tower = true, .language_model = true}}),
    [](const auto& instance) { return instance.param.name; });

TEST_F(RehearsalTest, GradientsOfTasksApartTakeTheirSumsBesideEachOther) {
  Job job = model_.job();
  const Outcome together = rehearse(job, micro_batches_of(1), 2);
  job.objective.tasks = {.count = 3, .weights = {1, 1, 1}, .gradient_norms = true, .resolve_conflicts = true};
  const Outcome apart = rehearse(job, micro_batches_of(1), 2);
  const int64_t one = together.detail->trained_elements * 4;
  const int64_t taken = most_of(*apart.detail, Component::kGradients);
  EXPECT_GE(taken, 3 * one);
  // Each tensor begins at a multiple of 512 bytes.
  EXPECT_LE(taken, 3 * one + 3 * 512 * 1000);
  EXPECT_GE(apart.peaks().allocated_bytes - together.peaks().allocated_bytes, 2 * one);
  EXPECT_GT(apart.costs->optimizer.launches, 0);
}

class QuantizedWeightsTest : public RehearsalTest, public testing::WithParamInterface<nn::Quantization> {};

TEST_P(QuantizedWeightsTest, TakeTheBytesThatTheyHold) {
  Job job = model_.job();
  job.lora = nn::LoraSettings{.rank = 4};
  job.quantization = GetParam();
  const Outcome outcome = rehearse(job, micro_batches_of(1), 1);
  const auto built =
      models::build_model(model_.path(), at::kMeta, engine::dtype_of(job.precision), job.lora, job.quantization);
  int64_t bytes = 0;
  int64_t tensors = 2;  // the tables
  std::set<const void*> counted;
  for (const auto& parameter : built->parameters().all()) {
    std::vector<at::Tensor> held{parameter.tensor};
    if (parameter.quantized) {
      held.clear();
      for (const auto& [name, tensor] : parameter.quantized->state()) held.push_back(tensor);
    }
    for (const auto& tensor : held) {
      const bool is_new = counted.insert(tensor.storage().unsafeGetStorageImpl()).second;
      if (is_new) bytes += static_cast<int64_t>(tensor.storage().nbytes());
    }
    tensors += std::ssize(held);
  }
  const int64_t taken = most_of(*outcome.detail, Component::kWeights);
  EXPECT_GE(taken, bytes);
  // NF4 has a table of the four values of each two bytes.
  const int64_t table_bytes = GetParam() == nn::Quantization::kNf4 ? 65536 * 4 * int64_t{sizeof(float)} : 0;
  EXPECT_LE(taken, bytes + table_bytes + 512 * tensors + 4096);

  Job plain = job;
  plain.quantization = nn::Quantization::kNone;
  const Outcome without = rehearse(plain, micro_batches_of(1), 1);
  EXPECT_LT(taken, most_of(*without.detail, Component::kWeights));
  EXPECT_EQ(outcome.detail->total_elements, without.detail->total_elements);
  EXPECT_EQ(outcome.detail->trained_elements, without.detail->trained_elements);
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedWeightsTest,
                         testing::Values(nn::Quantization::kNf4, nn::Quantization::kInt8),
                         [](const auto& instance) { return nn::name_of(instance.param); });

TEST_F(RehearsalTest, AFrozenTowerKeepsNoActivations) {
  Job frozen = model_.job();
  frozen.frozen.vision_tower = true;
  const auto trained_peak = rehearse(model_.job(), micro_batches_of(4), 4).detail->peak;
  const auto frozen_peak = rehearse(frozen, micro_batches_of(4), 4).detail->peak;
  EXPECT_LT(bytes_of(frozen_peak.by_component, Component::kVision),
            bytes_of(trained_peak.by_component, Component::kVision) / 10);
}

TEST_F(RehearsalTest, RecomputationLowersTheActivationsOfItsTower) {
  RehearsalProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const auto with = [&](models::RecomputeBlocks blocks) {
    return process.rehearse(request({.micro_batch_size = 2, .recompute = blocks}, 2));
  };
  const Outcome none = with({});
  const Outcome vision = with({.vision = 12, .language = 0});
  const Outcome language = with({.vision = 0, .language = 30});
  const Outcome half = with({.vision = 6, .language = 0});
  const auto activations = [](const Outcome& outcome, Component component) {
    return most_of(*outcome.detail, component);
  };
  EXPECT_LT(activations(vision, Component::kVision), activations(none, Component::kVision) / 2);
  EXPECT_LT(activations(language, Component::kLanguage), activations(none, Component::kLanguage) / 2);
  EXPECT_GT(activations(half, Component::kVision), activations(vision, Component::kVision));
  EXPECT_LT(activations(half, Component::kVision), activations(none, Component::kVision));
  EXPECT_LT(vision.peaks().reserved_bytes, none.peaks().reserved_bytes);
  EXPECT_LT(half.peaks().reserved_bytes, none.peaks().reserved_bytes);
  for (const Outcome* recomputed : {&vision, &language, &half}) {
    EXPECT_GT(recomputed->costs->total.product_operations, none.costs->total.product_operations);
    EXPECT_GT(recomputed->costs->total.seconds, none.costs->total.seconds);
    EXPECT_EQ(recomputed->costs->vision_blocks_forward.product_operations,
              none.costs->vision_blocks_forward.product_operations);
  }
  // Recomputing all blocks does their forward pass once more, no more and no less.
  EXPECT_EQ(vision.costs->total.product_operations,
            none.costs->total.product_operations + none.costs->vision_blocks_forward.product_operations);
  EXPECT_EQ(language.costs->total.attention_operations,
            none.costs->total.attention_operations + none.costs->language_blocks_forward.attention_operations);
}

TEST_F(RehearsalTest, FewerTilesAPassAndSmallerLossChunksTakeLessWhereTheyWork) {
  RehearsalProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const Choices all{.micro_batch_size = 4, .recompute = {12, 30}};
  Choices few_tiles = all;
  few_tiles.vision_tiles_per_pass = 5;
  Choices small_chunks = all;
  small_chunks.loss_chunk_rows = 32;
  const Outcome whole = process.rehearse(request(all, 4));
  const Outcome passes = process.rehearse(request(few_tiles, 4));
  const Outcome chunks = process.rehearse(request(small_chunks, 4));
  EXPECT_LT(most_of(*passes.detail, Component::kVision), most_of(*whole.detail, Component::kVision));
  EXPECT_LT(most_of(*chunks.detail, Component::kLoss), most_of(*whole.detail, Component::kLoss));
}

TEST_F(RehearsalTest, TheInputsOfTheNextMicroBatchAreCounted) {
  RehearsalProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  Choices one_at_a_time = micro_batches_of(2);
  one_at_a_time.copies_ahead = false;
  const auto inputs = [&](const Choices& choices, int64_t samples) {
    return most_of(*process.rehearse(request(choices, samples)).detail, Component::kInput);
  };
  const int64_t one = inputs(one_at_a_time, 6);
  EXPECT_GT(one, 10 * kMiB);
  EXPECT_EQ(inputs(micro_batches_of(2), 6), 2 * one);
  EXPECT_EQ(inputs(micro_batches_of(2), 2), one) << "there is no next one";
}

TEST_F(RehearsalTest, OutOfMemoryIsAnAnswerAndTheProcessGoesOn) {
  const PresetFolder tiny("smolvlm-tiny");
  const RehearsalRequest small{
      .choices = micro_batches_of(1), .steps = {kSteps, {{tiny.shape({.images = 0}), 2}}}, .with_detail = true};
  RehearsalProcess process(model_.job(), {.gpu = "h100", .memory_bytes = 4 * kGiB});
  const Outcome too_much = process.rehearse(request(micro_batches_of(4), 4));
  EXPECT_TRUE(too_much.out_of_memory);
  EXPECT_LT(std::ssize(too_much.steps), kSteps);
  EXPECT_FALSE(too_much.detail);

  process.set_job(tiny.job());
  const Outcome after = process.rehearse(small);
  EXPECT_FALSE(after.out_of_memory);
  RehearsalProcess fresh(tiny.job(), {.gpu = "h100", .memory_bytes = 4 * kGiB});
  EXPECT_EQ(flat(after), flat(fresh.rehearse(small))) << "what did not fit has left nothing behind";

  process.set_job(model_.job());
  EXPECT_TRUE(process.rehearse(request(micro_batches_of(4), 4)).out_of_memory);
}

/// The promise of a plan: a card that says it is as large and has no limit does what the card itself does, allocation
/// by allocation, as long as there is room. How large a card says that it is matters: expandable segments reserve
/// addresses in proportion to it, and the last free block counts as large as the addresses behind it.
class CardSizeTest : public RehearsalTest, public testing::WithParamInterface<int64_t> {};

TEST_P(CardSizeTest, ACardWithoutLimitTellsWhatACardOfThatSizeDoes) {
  const auto outcome_on = [&](const VirtualCard& card) {
    RehearsalProcess process(model_.job(), card);
    return process.rehearse(request(micro_batches_of(2), 2, 2));
  };
  const int64_t about = outcome_on({.gpu = "h100", .memory_bytes = kUnlimited}).peaks().reserved_bytes;
  const int64_t size = about + GetParam();
  const Outcome planned = outcome_on({.gpu = "h100", .memory_bytes = kUnlimited, .reported_bytes = size});
  const int64_t others = size - planned.peaks().reserved_bytes;
  const Outcome enough = outcome_on({.gpu = "h100", .memory_bytes = size, .used_bytes = others});
  EXPECT_FALSE(enough.out_of_memory);
  EXPECT_EQ(enough.allocation_retries, 0);
  EXPECT_EQ(flat(enough), flat(planned));
  const Outcome less = outcome_on({.gpu = "h100", .memory_bytes = size, .used_bytes = others + 2 * kMiB});
  EXPECT_TRUE(less.out_of_memory || less.allocation_retries > 0);
}

/// On a card that has what it says, PyTorch is out of memory before it comes so far.
TEST_F(RehearsalTest, ATensorLargerThanAllThatTheCardSaysItHasIsMeasured) {
  const PresetFolder tiny("smolvlm-tiny");
  const RehearsalRequest longest{.choices = micro_batches_of(1),
                                 .steps = {{{tiny.shape({.images = 0, .text_tokens = 100'000}), 1}}}};
  const auto peak_on = [&](const VirtualCard& card) {
    return RehearsalProcess(tiny.job(), card).rehearse(longest).peaks().allocated_bytes;
  };
  const int64_t peak = peak_on({.gpu = "h100", .memory_bytes = kUnlimited});
  ASSERT_GT(peak, kGiB);
  EXPECT_EQ(peak_on({.gpu = "h100", .memory_bytes = kUnlimited, .reported_bytes = 4 * kMiB}), peak);
}

INSTANTIATE_TEST_SUITE_P(BytesBesideThePeak, CardSizeTest, testing::Values(512 * kMiB, 2 * kGiB, 16 * kGiB));

TEST_F(RehearsalTest, AModelOfAnUnknownFamilyIsTheSameErrorAsInThisProcess) {
  std::ofstream(model_.path() / "config.json") << R"({"model_type": "paligemma"})";
  const std::string here =
      message_of([&] { models::build_model(model_.path(), at::kCPU, at::kFloat); }, ExitCode::kBadData);
  RehearsalProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  EXPECT_EQ(message_of([&] { process.rehearse(request({}, 1)); }, ExitCode::kBadData), here);
  EXPECT_THAT(here, testing::HasSubstr("paligemma"));
  // An error does not end the process either.
  const PresetFolder tiny("smolvlm-tiny");
  process.set_job(tiny.job());
  EXPECT_THAT(process.rehearse({.choices = {}, .steps = {{{tiny.shape({.images = 0}), 1}}}}).steps, SizeIs(1));
}

TEST_F(RehearsalTest, AFolderWithoutConfigIsTheSameErrorAsInThisProcess) {
  Job job = model_.job();
  job.model = "/nowhere";
  RehearsalProcess process(job, {.gpu = "h100", .memory_bytes = kUnlimited});
  EXPECT_EQ(message_of([&] { process.rehearse(request({}, 1)); }, ExitCode::kBadData),
            message_of([&] { models::build_model("/nowhere", at::kCPU, at::kFloat); }, ExitCode::kBadData));
}

TEST_F(RehearsalTest, AProcessThatIsDoneLeavesNothingToWaitFor) {
  { RehearsalProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited}); }
  siginfo_t ended{};
  errno = 0;
  EXPECT_EQ(waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT), -1) << "process " << ended.si_pid;
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(RehearsalTest, ACardThatNobodyKnowsIsAnError) {
  RehearsalProcess process(model_.job(), {.gpu = "nonsense", .memory_bytes = kUnlimited});
  EXPECT_ANY_THROW(process.rehearse(request({}, 1)));
}

class CostTest : public RehearsalTest {
 protected:
  static double product_operations(const Outcome& outcome) { return outcome.costs->total.product_operations; }
  static double attention_operations(const Outcome& outcome) { return outcome.costs->total.attention_operations; }

  nlohmann::json config() const {
    std::ifstream file(model_.path() / "config.json");
    return nlohmann::json::parse(file);
  }
};

TEST_F(CostTest, OperationsAreInProportionToTheSamples) {
  RehearsalProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const Outcome one = process.rehearse(request(micro_batches_of(1), 1));
  for (const auto& [size, samples] : {std::pair{2, 2}, {1, 2}, {3, 3}, {2, 6}}) {
    const Outcome more = process.rehearse(request(micro_batches_of(size), samples));
    EXPECT_EQ(product_operations(more), samples * product_operations(one));
    EXPECT_EQ(attention_operations(more), samples * attention_operations(one));
    EXPECT_GT(more.costs->total.bytes_moved, one.costs->total.bytes_moved);
    EXPECT_GT(more.costs->total.seconds, one.costs->total.seconds);
    EXPECT_EQ(more.costs->optimizer.bytes_moved, one.costs->optimizer.bytes_moved) << "one step of the optimizer";
  }
}

/// Against the sizes in config.json: a product of [tokens, in] and [in, out] is 2 · tokens · in · out operations.
TEST_F(CostTest, OperationsOfTheLanguageModelFollowFromItsSizes) {
  const Outcome outcome = rehearse(model_.job(), micro_batches_of(1), 1);
  const auto text = config()["text_config"];
  const double hidden = text["hidden_size"];
  const double heads = text["num_attention_heads"];
  const double key_heads = text["num_key_value_heads"];
  const double head_size = text["head_dim"];
  const double layers = text["num_hidden_layers"];
  const double weights =
      hidden * head_size * (2 * heads + 2 * key_heads) + 3 * hidden * text["intermediate_size"].get<double>();
  const auto tokens = static_cast<double>(shape_.tokens);
  EXPECT_EQ(outcome.costs->language_blocks_forward.product_operations, 2 * tokens * layers * weights);
  // Scores and their product with the values, half of them behind a causal mask.
  EXPECT_EQ(outcome.costs->language_blocks_forward.attention_operations,
            0.5 * 4 * tokens * tokens * heads * head_size * layers);
}

TEST_F(CostTest, OperationsOfTheVisionTowerFollowFromItsSizes) {
  const Outcome outcome = rehearse(model_.job(), micro_batches_of(1), 1);
  const auto vision = config()["vision_config"];
  const double hidden = vision["hidden_size"];
  const double layers = vision["num_hidden_layers"];
  const double patches_a_side = vision["image_size"].get<double>() / vision["patch_size"].get<double>();
  const double patches = patches_a_side * patches_a_side;
  const auto tiles = static_cast<double>(shape_.pixel_rows);
  const double weights = 4 * hidden * hidden + 2 * hidden * vision["intermediate_size"].get<double>();
  EXPECT_EQ(outcome.costs->vision_blocks_forward.product_operations, 2 * tiles * patches * layers * weights);
  EXPECT_EQ(outcome.costs->vision_blocks_forward.attention_operations, 4 * tiles * patches * patches * hidden * layers);
}

TEST_F(CostTest, AreNoNumbersThatCannotBe) {
  const Outcome outcome = rehearse(model_.job(), micro_batches_of(1), 1);
  const StepCosts& costs = *outcome.costs;
  for (const Cost* part : {&costs.vision_blocks_forward, &costs.language_blocks_forward, &costs.optimizer}) {
    EXPECT_GT(part->launches, 0);
    EXPECT_GT(part->bytes_moved, 0);
    EXPECT_GT(part->seconds, 0);
    EXPECT_LT(part->seconds, costs.total.seconds);
    EXPECT_LT(part->launches, costs.total.launches);
  }
  EXPECT_EQ(costs.optimizer.product_operations, 0);
  // Forward and backward pass: about three times the forward pass, besides the loss and the projector.
  const double forward =
      costs.vision_blocks_forward.product_operations + costs.language_blocks_forward.product_operations;
  EXPECT_GT(costs.total.product_operations, 2.9 * forward);
  EXPECT_LT(costs.total.product_operations, 3.5 * forward);
}

TEST_F(CostTest, FewerBitsAreFasterOnTheSameCard) {
  const auto seconds = [&](engine::Precision precision) {
    Job job = model_.job();
    job = with_precision(job, precision);
    return rehearse(job, micro_batches_of(2), 2).costs->language_blocks_forward.seconds;
  };
  const double bf16 = seconds(engine::Precision::kBf16);
  EXPECT_NEAR(seconds(engine::Precision::kFp16) / bf16, 1, 0.01) << "an H100 does as many operations in both";
  EXPECT_GT(seconds(engine::Precision::kFp32), 2 * bf16);
}

TEST_F(CostTest, ASlowerCardTakesLongerForTheSame) {
  const Outcome fast = rehearse(model_.job(), micro_batches_of(2), 2, "h100");
  const Outcome slow = rehearse(model_.job(), micro_batches_of(2), 2, "l4");
  EXPECT_EQ(product_operations(fast), product_operations(slow));
  EXPECT_GT(slow.costs->total.seconds, fast.costs->total.seconds);
}

}  // namespace
}  // namespace vlmtrain::planner
