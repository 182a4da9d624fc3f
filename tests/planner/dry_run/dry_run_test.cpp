#include "planner/dry_run.h"

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

#include "planner/user_error.h"
#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {
namespace {

using memory::Component;
using testing::Each;
using testing::ElementsAreArray;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kSteps = 3;

int64_t find_max_bytes(const DryRunDetail& detail, Component component) {
  int64_t most = 0;
  for (const auto& point : detail.timeline) most = std::max(most, get_bytes(point.by_component, component));
  return most;
}

int64_t sum(const memory::ComponentBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

/// Real rehearsals of SmolVLM-256M with images of four tiles and the whole picture.
class DryRunTest : public testing::Test {
 protected:
  DryRunRequest request(const StepConfig& step_config, int64_t samples, int64_t steps = kSteps) const {
    return {.step_config = step_config,
            .steps = std::vector(static_cast<size_t>(steps), std::vector<SampleGroup>{{shape_, samples}}),
            .with_costs = true,
            .with_detail = true,
            .with_timeline = true};
  }

  DryRunResult dry_run(const Job& job, const StepConfig& step_config, int64_t samples,
                       const std::string& gpu = "h100") const {
    DryRunProcess process(job, {.gpu = gpu, .memory_bytes = kUnlimited});
    return process.dry_run(request(step_config, samples));
  }

  const PresetFolder model_{"smolvlm-256m"};
  const data::SampleShape shape_ = model_.shape({.images = 1, .image_width = 1024, .image_height = 1024});
};

/// Those of a process, as /proc has them.
std::vector<pid_t> list_children(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;
    // id (name) state parent
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string state;
    pid_t parent_id = 0;
    fields >> state >> parent_id;
    if (parent_id == parent) children.push_back(static_cast<pid_t>(std::stol(line)));
  }
  return children;
}

TEST_F(DryRunTest, APrefetchedResultIsTheSameAndTheWorkerMayDie) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const DryRunRequest single_sample = request(make_step_config(1), 4), two_samples = request(make_step_config(2), 4);
  const DryRunResult first_result = process.dry_run(single_sample), second_result = process.dry_run(two_samples);
  process.prefetch(two_samples);
  EXPECT_EQ(list_peaks(process.dry_run(single_sample)), list_peaks(first_result));
  EXPECT_EQ(list_peaks(process.dry_run(two_samples)), list_peaks(second_result));
  std::vector<pid_t> workers;
  for (const pid_t child : list_children(getpid())) {
    for (const pid_t worker : list_children(child)) workers.push_back(worker);
  }
  if (workers.empty()) GTEST_SKIP() << "one processor has one worker";
  process.prefetch(two_samples);
  for (const pid_t worker : workers) kill(worker, SIGKILL);
  EXPECT_EQ(list_peaks(process.dry_run(two_samples)), list_peaks(second_result));
  process.prefetch(single_sample);
  EXPECT_EQ(list_peaks(process.dry_run(single_sample)), list_peaks(first_result));
}

TEST_F(DryRunTest, IsDeterministicAcrossProcesses) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const StepConfig two = make_step_config(2);
  const DryRunResult first = process.dry_run(request(two, 4));
  ASSERT_THAT(first.steps, SizeIs(kSteps));
  // Others between them leave nothing behind.
  process.dry_run(request({.micro_batch_size = 1, .recompute = {5, 9}, .expandable_segments = false}, 3));
  const DryRunResult repeated = process.dry_run(request(two, 4));
  const DryRunResult other_process = dry_run(model_.job(), two, 4);
  for (const DryRunResult* other : {&repeated, &other_process}) {
    EXPECT_EQ(list_peaks(*other), list_peaks(first));
    EXPECT_EQ(other->detail->peak.by_component, first.detail->peak.by_component);
    EXPECT_EQ(other->detail->peak.event, first.detail->peak.event);
    EXPECT_EQ(other->costs->total.kernel_launches, first.costs->total.kernel_launches);
    EXPECT_EQ(other->costs->total.seconds, first.costs->total.seconds);
    EXPECT_EQ(other->costs->total.bytes_moved, first.costs->total.bytes_moved);
  }
}

/// Its moments are made at the end of the first step, so they lie beside the activations from the second on.
TEST_F(DryRunTest, MemoryIsStableFromTheSecondStep) {
  const DryRunResult result = dry_run(model_.job(), make_step_config(1), 1);
  ASSERT_THAT(result.steps, SizeIs(kSteps));
  EXPECT_GT(result.steps[1].allocated_bytes, result.steps[0].allocated_bytes);
  EXPECT_EQ(result.steps[2].allocated_bytes, result.steps[1].allocated_bytes);
  EXPECT_EQ(result.steps[2].reserved_bytes, result.steps[1].reserved_bytes);
  for (const auto& step : result.steps) EXPECT_GE(step.reserved_bytes, step.allocated_bytes);
  EXPECT_EQ(result.allocation_retries, 0);
  EXPECT_FALSE(result.out_of_memory);
}

TEST_F(DryRunTest, TheComponentsAddUpToTheAllocatorsPeak) {
  for (const auto& [gpu, segments] : {std::pair{"h100", true}, {"h100", false}, {"rtx4090", true}}) {
    SCOPED_TRACE(gpu);
    const DryRunResult result =
        dry_run(model_.job(), {.micro_batch_size = 2, .recompute = {}, .expandable_segments = segments}, 4, gpu);
    const auto& peak = result.detail->peak;
    EXPECT_EQ(sum(peak.by_component), peak.allocated_bytes);
    EXPECT_EQ(peak.allocated_bytes, result.peaks().allocated_bytes) << "as the allocator's statistics say";
    EXPECT_THAT(peak.by_component, Each(testing::Ge(0)));
    EXPECT_GT(get_bytes(peak.by_component, Component::kWorkspace), 0);
    EXPECT_GT(get_bytes(peak.by_component, Component::kVision), 0);
    EXPECT_GT(get_bytes(peak.by_component, Component::kLanguage), 0);
    EXPECT_LT(get_bytes(peak.by_component, Component::kOther), kMiB) << "nearly everything has a name";
  }
}

TEST_F(DryRunTest, TheTimelineIsTheLastStep) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  auto shrinking = request(make_step_config(3), 3);
  shrinking.steps.push_back({{shape_, 1}});
  const DryRunResult result = process.dry_run(shrinking);
  const auto& timeline = result.detail->timeline;
  ASSERT_FALSE(timeline.empty());
  ASSERT_LT(result.steps.back().allocated_bytes, result.steps[1].allocated_bytes) << "another peak than before";
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
  EXPECT_EQ(allocated, result.steps.back().allocated_bytes);
  EXPECT_EQ(reserved, result.steps.back().reserved_bytes);
  EXPECT_TRUE(forward && backward);
}

TEST_F(DryRunTest, OptionalPartsAreOffByDefault) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  DryRunRequest minimal = request({}, 1);
  const DryRunResult full = process.dry_run(minimal);
  minimal.with_costs = minimal.with_detail = minimal.with_timeline = false;
  const DryRunResult result = process.dry_run(minimal);
  EXPECT_FALSE(result.costs);
  EXPECT_FALSE(result.detail);
  EXPECT_EQ(list_peaks(result), list_peaks(full)) << "looking changes nothing";
  minimal.with_detail = true;
  EXPECT_THAT(process.dry_run(minimal).detail->timeline, IsEmpty());
}

struct ComponentCase {
  const char* name;
  engine::Precision precision;
  models::FrozenParts frozen;
  engine::OptimizerStates states = engine::OptimizerStates::kFp32;

  friend std::ostream& operator<<(std::ostream& out, const ComponentCase& trained) { return out << trained.name; }
};

/// Both moments of a parameter.
int64_t compute_moment_bytes(const nn::Parameter& parameter, engine::OptimizerStates states) {
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
int64_t compute_chunk_bytes(engine::OptimizerStates states) {
  constexpr int64_t kElements = int64_t{16} << 20;
  const int64_t buffers = 2 * kElements * (4 + 4);
  if (states == engine::OptimizerStates::kBf16) return buffers;
  return buffers + 2 * kElements / 256 * (4 + 4) + 2 * 65536 * 8;
}

kernels::KernelSet list_all_kernels() {
  const auto all = kernels::all_kernels();
  return {all.begin(), all.end()};
}

/// What weights, gradients and optimizer take is known without any rehearsal.
class ComponentsTest : public DryRunTest, public testing::WithParamInterface<ComponentCase> {};

TEST_P(ComponentsTest, MatchTheNumberOfElements) {
  Job job = model_.job();
  job = with_precision(job, GetParam().precision);
  job.frozen = GetParam().frozen;
  job.optimizer.states = GetParam().states;
  job.disabled_kernels = list_all_kernels();
  const bool has_masters = job.precision != engine::Precision::kFp32;
  const DryRunResult result = dry_run(job, make_step_config(1), 1);
  const DryRunDetail& detail = *result.detail;

  const auto built = models::build_model(model_.path(), at::kMeta, engine::to_dtype(job.precision));
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
    moments += compute_moment_bytes(parameter, job.optimizer.states);
  }
  EXPECT_EQ(detail.num_parameters, total);
  EXPECT_EQ(detail.num_trainable_parameters, trained);

  // Each tensor is rounded up to 512 bytes; of a block for large tensors up to 1 MiB may stay unused, but not where
  // segments grow.
  const auto expect_close = [&](Component component, int64_t bytes, int64_t tensors_of_it) {
    const int64_t used_bytes = find_max_bytes(detail, component);
    EXPECT_GE(used_bytes, bytes) << memory::to_string(component);
    EXPECT_LE(used_bytes, bytes + 512 * tensors_of_it + kMiB) << memory::to_string(component);
  };
  expect_close(Component::kWeights, total * (has_masters ? 2 : 4), tensors);
  expect_close(Component::kGradients, trained * 4, tensors);
  // Two moments, and masters where the weights have 16 bits. While it steps it takes a little for the norm.
  if (job.optimizer.states != engine::OptimizerStates::kFp32) moments += compute_chunk_bytes(job.optimizer.states);
  expect_close(Component::kOptimizer, trained * (has_masters ? 4 : 0) + moments, 4 * tensors);
}

/// Our own kernel moves compressed states where they lie; ATen's operations take chunks of them out.
TEST_P(ComponentsTest, FusedKernelsNeedNoChunks) {
  if (GetParam().states == engine::OptimizerStates::kFp32) GTEST_SKIP() << "of fp32 states nobody takes any";
  if (!std::filesystem::exists(std::filesystem::path(VLMTRAIN_BINARY).parent_path() / "libvlmtrain_kernels.so")) {
    GTEST_SKIP() << "own kernels are not built";
  }
  Job job = with_precision(model_.job(), GetParam().precision);
  job.frozen = GetParam().frozen;
  job.optimizer.states = GetParam().states;
  const int64_t fused_bytes = find_max_bytes(*dry_run(job, make_step_config(1), 1).detail, Component::kOptimizer);
  job.disabled_kernels = list_all_kernels();
  const int64_t aten_bytes = find_max_bytes(*dry_run(job, make_step_config(1), 1).detail, Component::kOptimizer);
  constexpr int64_t kTables = kMiB;  // of 8 bits: of all pairs of codes
  EXPECT_NEAR(fused_bytes + compute_chunk_bytes(job.optimizer.states), aten_bytes, 2 * kTables);
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

TEST_F(DryRunTest, GradientsOfSeparateTasksNeedSeparateBuckets) {
  Job job = model_.job();
  const DryRunResult together = dry_run(job, make_step_config(1), 2);
  job.objective.tasks = {.count = 3, .weights = {1, 1, 1}, .gradient_norms = true, .resolve_conflicts = true};
  const DryRunResult separate = dry_run(job, make_step_config(1), 2);
  const int64_t one = together.detail->num_trainable_parameters * 4;
  const int64_t used_bytes = find_max_bytes(*separate.detail, Component::kGradients);
  EXPECT_GE(used_bytes, 3 * one);
  // Each tensor begins at a multiple of 512 bytes.
  EXPECT_LE(used_bytes, 3 * one + 3 * 512 * 1000);
  EXPECT_GE(separate.peaks().allocated_bytes - together.peaks().allocated_bytes, 2 * one);
  EXPECT_GT(separate.costs->optimizer.kernel_launches, 0);
}

class QuantizedWeightsTest : public DryRunTest, public testing::WithParamInterface<nn::Quantization> {};

TEST_P(QuantizedWeightsTest, MatchTheBytesOfTheirTensors) {
  Job job = model_.job();
  job.lora = nn::LoraSettings{.rank = 4};
  job.quantization = GetParam();
  const DryRunResult result = dry_run(job, make_step_config(1), 1);
  const auto built =
      models::build_model(model_.path(), at::kMeta, engine::to_dtype(job.precision), job.lora, job.quantization);
  int64_t bytes = 0;
  int64_t tensors = 2;  // the tables
  std::set<const void*> counted;
  for (const auto& parameter : built->parameters().all()) {
    std::vector<at::Tensor> tensors_of_parameter{parameter.tensor};
    if (parameter.quantized) {
      tensors_of_parameter.clear();
      for (const auto& [name, tensor] : parameter.quantized->state()) tensors_of_parameter.push_back(tensor);
    }
    for (const auto& tensor : tensors_of_parameter) {
      const bool is_new = counted.insert(tensor.storage().unsafeGetStorageImpl()).second;
      if (is_new) bytes += static_cast<int64_t>(tensor.storage().nbytes());
    }
    tensors += std::ssize(tensors_of_parameter);
  }
  const int64_t used_bytes = find_max_bytes(*result.detail, Component::kWeights);
  EXPECT_GE(used_bytes, bytes);
  // NF4 has a table of the four values of each two bytes.
  const int64_t table_bytes = GetParam() == nn::Quantization::kNf4 ? 65536 * 4 * int64_t{sizeof(float)} : 0;
  EXPECT_LE(used_bytes, bytes + table_bytes + 512 * tensors + 4096);

  Job unquantized = job;
  unquantized.quantization = nn::Quantization::kNone;
  const DryRunResult unquantized_result = dry_run(unquantized, make_step_config(1), 1);
  EXPECT_LT(used_bytes, find_max_bytes(*unquantized_result.detail, Component::kWeights));
  EXPECT_EQ(result.detail->num_parameters, unquantized_result.detail->num_parameters);
  EXPECT_EQ(result.detail->num_trainable_parameters, unquantized_result.detail->num_trainable_parameters);
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedWeightsTest,
                         testing::Values(nn::Quantization::kNf4, nn::Quantization::kInt8),
                         [](const auto& instance) { return nn::to_string(instance.param); });

TEST_F(DryRunTest, AFrozenTowerKeepsNoActivations) {
  Job frozen = model_.job();
  frozen.frozen.vision_tower = true;
  const auto trained_peak = dry_run(model_.job(), make_step_config(4), 4).detail->peak;
  const auto frozen_peak = dry_run(frozen, make_step_config(4), 4).detail->peak;
  EXPECT_LT(get_bytes(frozen_peak.by_component, Component::kVision),
            get_bytes(trained_peak.by_component, Component::kVision) / 10);
}

TEST_F(DryRunTest, RecomputationLowersTheActivationsOfItsTower) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const auto run_with = [&](models::RecomputeBlocks blocks) {
    return process.dry_run(request({.micro_batch_size = 2, .recompute = blocks}, 2));
  };
  const DryRunResult none = run_with({});
  const DryRunResult vision = run_with({.vision = 12, .language = 0});
  const DryRunResult language = run_with({.vision = 0, .language = 30});
  const DryRunResult half = run_with({.vision = 6, .language = 0});
  const auto activations = [](const DryRunResult& result, Component component) {
    return find_max_bytes(*result.detail, component);
  };
  EXPECT_LT(activations(vision, Component::kVision), activations(none, Component::kVision) / 2);
  EXPECT_LT(activations(language, Component::kLanguage), activations(none, Component::kLanguage) / 2);
  EXPECT_GT(activations(half, Component::kVision), activations(vision, Component::kVision));
  EXPECT_LT(activations(half, Component::kVision), activations(none, Component::kVision));
  EXPECT_LT(vision.peaks().reserved_bytes, none.peaks().reserved_bytes);
  EXPECT_LT(half.peaks().reserved_bytes, none.peaks().reserved_bytes);
  for (const DryRunResult* recomputed : {&vision, &language, &half}) {
    EXPECT_GT(recomputed->costs->total.matmul_flops, none.costs->total.matmul_flops);
    EXPECT_GT(recomputed->costs->total.seconds, none.costs->total.seconds);
    EXPECT_EQ(recomputed->costs->vision_blocks_forward.matmul_flops, none.costs->vision_blocks_forward.matmul_flops);
  }
  // Recomputing all blocks does their forward pass once more, no more and no less.
  EXPECT_EQ(vision.costs->total.matmul_flops,
            none.costs->total.matmul_flops + none.costs->vision_blocks_forward.matmul_flops);
  EXPECT_EQ(language.costs->total.attention_flops,
            none.costs->total.attention_flops + none.costs->language_blocks_forward.attention_flops);
}

TEST_F(DryRunTest, FewerTilesAndSmallerLossChunksNeedLess) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const StepConfig all{.micro_batch_size = 4, .recompute = {12, 30}};
  StepConfig fewer_tiles = all;
  fewer_tiles.vision_tiles_per_pass = 5;
  StepConfig small_chunks = all;
  small_chunks.loss_chunk_rows = 32;
  const DryRunResult full_result = process.dry_run(request(all, 4));
  const DryRunResult tile_result = process.dry_run(request(fewer_tiles, 4));
  const DryRunResult chunk_result = process.dry_run(request(small_chunks, 4));
  EXPECT_LT(find_max_bytes(*tile_result.detail, Component::kVision),
            find_max_bytes(*full_result.detail, Component::kVision));
  EXPECT_LT(find_max_bytes(*chunk_result.detail, Component::kLoss),
            find_max_bytes(*full_result.detail, Component::kLoss));
}

TEST_F(DryRunTest, InputsOfTheNextMicroBatchAreCounted) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  StepConfig without_copies_ahead = make_step_config(2);
  without_copies_ahead.copies_ahead = false;
  const auto inputs = [&](const StepConfig& step_config, int64_t samples) {
    return find_max_bytes(*process.dry_run(request(step_config, samples)).detail, Component::kInput);
  };
  const int64_t one = inputs(without_copies_ahead, 6);
  EXPECT_GT(one, 10 * kMiB);
  EXPECT_EQ(inputs(make_step_config(2), 6), 2 * one);
  EXPECT_EQ(inputs(make_step_config(2), 2), one) << "there is no next one";
}

TEST_F(DryRunTest, OutOfMemoryIsReportedAndTheProcessContinues) {
  const PresetFolder tiny("smolvlm-tiny");
  const DryRunRequest small{
      .step_config = make_step_config(1), .steps = {kSteps, {{tiny.shape({.images = 0}), 2}}}, .with_detail = true};
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = 4 * kGiB});
  const DryRunResult out_of_memory_result = process.dry_run(request(make_step_config(4), 4));
  EXPECT_TRUE(out_of_memory_result.out_of_memory);
  EXPECT_LT(std::ssize(out_of_memory_result.steps), kSteps);
  EXPECT_FALSE(out_of_memory_result.detail);

  process.set_job(tiny.job());
  const DryRunResult next_result = process.dry_run(small);
  EXPECT_FALSE(next_result.out_of_memory);
  DryRunProcess new_process(tiny.job(), {.gpu = "h100", .memory_bytes = 4 * kGiB});
  EXPECT_EQ(list_peaks(next_result), list_peaks(new_process.dry_run(small)))
      << "what did not fit has left nothing behind";

  process.set_job(model_.job());
  EXPECT_TRUE(process.dry_run(request(make_step_config(4), 4)).out_of_memory);
}

/// The promise of a plan: a card that says it is as large and has no limit does what the card itself does, allocation
/// by allocation, as long as there is room. How large a card says that it is matters: expandable segments reserve
/// addresses in proportion to it, and the last free block counts as large as the addresses behind it.
class GpuSizeTest : public DryRunTest, public testing::WithParamInterface<int64_t> {};

TEST_P(GpuSizeTest, AnUnlimitedGpuPredictsAGpuOfThatSize) {
  const auto run_on_gpu = [&](const VirtualGpu& gpu) {
    DryRunProcess process(model_.job(), gpu);
    return process.dry_run(request(make_step_config(2), 2, 2));
  };
  const int64_t approximate_bytes = run_on_gpu({.gpu = "h100", .memory_bytes = kUnlimited}).peaks().reserved_bytes;
  const int64_t size = approximate_bytes + GetParam();
  const DryRunResult planned_result = run_on_gpu({.gpu = "h100", .memory_bytes = kUnlimited, .reported_bytes = size});
  const int64_t others = size - planned_result.peaks().reserved_bytes;
  const DryRunResult large_enough = run_on_gpu({.gpu = "h100", .memory_bytes = size, .used_bytes = others});
  EXPECT_FALSE(large_enough.out_of_memory);
  EXPECT_EQ(large_enough.allocation_retries, 0);
  EXPECT_EQ(list_peaks(large_enough), list_peaks(planned_result));
  const DryRunResult too_small = run_on_gpu({.gpu = "h100", .memory_bytes = size, .used_bytes = others + 2 * kMiB});
  EXPECT_TRUE(too_small.out_of_memory || too_small.allocation_retries > 0);
}

/// On a card that has what it says, PyTorch is out of memory before it comes so far.
TEST_F(DryRunTest, ATensorLargerThanTheReportedMemoryIsMeasured) {
  const PresetFolder tiny("smolvlm-tiny");
  const DryRunRequest longest{.step_config = make_step_config(1),
                              .steps = {{{tiny.shape({.images = 0, .text_tokens = 100'000}), 1}}}};
  const auto measure_peak = [&](const VirtualGpu& gpu) {
    return DryRunProcess(tiny.job(), gpu).dry_run(longest).peaks().allocated_bytes;
  };
  const int64_t peak = measure_peak({.gpu = "h100", .memory_bytes = kUnlimited});
  ASSERT_GT(peak, kGiB);
  EXPECT_EQ(measure_peak({.gpu = "h100", .memory_bytes = kUnlimited, .reported_bytes = 4 * kMiB}), peak);
}

INSTANTIATE_TEST_SUITE_P(BytesBesideThePeak, GpuSizeTest, testing::Values(512 * kMiB, 2 * kGiB, 16 * kGiB));

TEST_F(DryRunTest, AnUnknownFamilyIsTheSameErrorAsInProcess) {
  std::ofstream(model_.path() / "config.json") << R"({"model_type": "paligemma"})";
  const std::string expected_message =
      get_error_message([&] { models::build_model(model_.path(), at::kCPU, at::kFloat); }, ExitCode::kBadData);
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  EXPECT_EQ(get_error_message([&] { process.dry_run(request({}, 1)); }, ExitCode::kBadData), expected_message);
  EXPECT_THAT(expected_message, testing::HasSubstr("paligemma"));
  // An error does not end the process either.
  const PresetFolder tiny("smolvlm-tiny");
  process.set_job(tiny.job());
  EXPECT_THAT(process.dry_run({.step_config = {}, .steps = {{{tiny.shape({.images = 0}), 1}}}}).steps, SizeIs(1));
}

TEST_F(DryRunTest, AFolderWithoutConfigIsTheSameErrorAsInProcess) {
  Job job = model_.job();
  job.model = "/nowhere";
  DryRunProcess process(job, {.gpu = "h100", .memory_bytes = kUnlimited});
  EXPECT_EQ(get_error_message([&] { process.dry_run(request({}, 1)); }, ExitCode::kBadData),
            get_error_message([&] { models::build_model("/nowhere", at::kCPU, at::kFloat); }, ExitCode::kBadData));
}

TEST_F(DryRunTest, TheDestructorReapsTheChild) {
  { DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited}); }
  siginfo_t exit_info{};
  errno = 0;
  EXPECT_EQ(waitid(P_ALL, 0, &exit_info, WEXITED | WNOHANG | WNOWAIT), -1) << "process " << exit_info.si_pid;
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(DryRunTest, AnUnknownGpuIsAnError) {
  DryRunProcess process(model_.job(), {.gpu = "nonsense", .memory_bytes = kUnlimited});
  EXPECT_ANY_THROW(process.dry_run(request({}, 1)));
}

class CostTest : public DryRunTest {
 protected:
  static double matmul_flops(const DryRunResult& result) { return result.costs->total.matmul_flops; }
  static double attention_flops(const DryRunResult& result) { return result.costs->total.attention_flops; }

  nlohmann::json config() const {
    std::ifstream file(model_.path() / "config.json");
    return nlohmann::json::parse(file);
  }
};

TEST_F(CostTest, FlopsAreProportionalToTheSamples) {
  DryRunProcess process(model_.job(), {.gpu = "h100", .memory_bytes = kUnlimited});
  const DryRunResult one = process.dry_run(request(make_step_config(1), 1));
  for (const auto& [size, samples] : {std::pair{2, 2}, {1, 2}, {3, 3}, {2, 6}}) {
    const DryRunResult larger_result = process.dry_run(request(make_step_config(size), samples));
    EXPECT_EQ(matmul_flops(larger_result), samples * matmul_flops(one));
    EXPECT_EQ(attention_flops(larger_result), samples * attention_flops(one));
    EXPECT_GT(larger_result.costs->total.bytes_moved, one.costs->total.bytes_moved);
    EXPECT_GT(larger_result.costs->total.seconds, one.costs->total.seconds);
    EXPECT_EQ(larger_result.costs->optimizer.bytes_moved, one.costs->optimizer.bytes_moved)
        << "one step of the optimizer";
  }
}

/// Against the sizes in config.json: a product of [tokens, in] and [in, out] is 2 · tokens · in · out operations.
TEST_F(CostTest, FlopsOfTheLanguageModelMatchItsSizes) {
  const DryRunResult result = dry_run(model_.job(), make_step_config(1), 1);
  const auto text = config()["text_config"];
  const double hidden = text["hidden_size"];
  const double heads = text["num_attention_heads"];
  const double key_heads = text["num_key_value_heads"];
  const double head_size = text["head_dim"];
  const double layers = text["num_hidden_layers"];
  const double weights =
      hidden * head_size * (2 * heads + 2 * key_heads) + 3 * hidden * text["intermediate_size"].get<double>();
  const auto tokens = static_cast<double>(shape_.tokens);
  EXPECT_EQ(result.costs->language_blocks_forward.matmul_flops, 2 * tokens * layers * weights);
  // Scores and their product with the values, half of them behind a causal mask.
  EXPECT_EQ(result.costs->language_blocks_forward.attention_flops,
            0.5 * 4 * tokens * tokens * heads * head_size * layers);
}

TEST_F(CostTest, FlopsOfTheVisionTowerMatchItsSizes) {
  const DryRunResult result = dry_run(model_.job(), make_step_config(1), 1);
  const auto vision = config()["vision_config"];
  const double hidden = vision["hidden_size"];
  const double layers = vision["num_hidden_layers"];
  const double patches_a_side = vision["image_size"].get<double>() / vision["patch_size"].get<double>();
  const double patches = patches_a_side * patches_a_side;
  const auto tiles = static_cast<double>(shape_.pixel_rows);
  const double weights = 4 * hidden * hidden + 2 * hidden * vision["intermediate_size"].get<double>();
  EXPECT_EQ(result.costs->vision_blocks_forward.matmul_flops, 2 * tiles * patches * layers * weights);
  EXPECT_EQ(result.costs->vision_blocks_forward.attention_flops, 4 * tiles * patches * patches * hidden * layers);
}

TEST_F(CostTest, AreConsistent) {
  const DryRunResult result = dry_run(model_.job(), make_step_config(1), 1);
  const StepCosts& costs = *result.costs;
  for (const Cost* part : {&costs.vision_blocks_forward, &costs.language_blocks_forward, &costs.optimizer}) {
    EXPECT_GT(part->kernel_launches, 0);
    EXPECT_GT(part->bytes_moved, 0);
    EXPECT_GT(part->seconds, 0);
    EXPECT_LT(part->seconds, costs.total.seconds);
    EXPECT_LT(part->kernel_launches, costs.total.kernel_launches);
  }
  EXPECT_EQ(costs.optimizer.matmul_flops, 0);
  // Forward and backward pass: about three times the forward pass, besides the loss and the projector.
  const double forward = costs.vision_blocks_forward.matmul_flops + costs.language_blocks_forward.matmul_flops;
  EXPECT_GT(costs.total.matmul_flops, 2.9 * forward);
  EXPECT_LT(costs.total.matmul_flops, 3.5 * forward);
}

TEST_F(CostTest, FewerBitsAreFasterOnTheSameGpu) {
  const auto seconds = [&](engine::Precision precision) {
    Job job = model_.job();
    job = with_precision(job, precision);
    return dry_run(job, make_step_config(2), 2).costs->language_blocks_forward.seconds;
  };
  const double bf16 = seconds(engine::Precision::kBf16);
  EXPECT_NEAR(seconds(engine::Precision::kFp16) / bf16, 1, 0.01) << "an H100 does as many operations in both";
  EXPECT_GT(seconds(engine::Precision::kFp32), 2 * bf16);
}

TEST_F(CostTest, ASlowerGpuTakesLonger) {
  const DryRunResult fast = dry_run(model_.job(), make_step_config(2), 2, "h100");
  const DryRunResult slow = dry_run(model_.job(), make_step_config(2), 2, "l4");
  EXPECT_EQ(matmul_flops(fast), matmul_flops(slow));
  EXPECT_GT(slow.costs->total.seconds, fast.costs->total.seconds);
}

}  // namespace
}  // namespace vlmtrain::planner
