// Prints launches, bytes and FLOPs of a gated delta net's operations on the virtual GPU, by operation,
// for one layer of qwen3.5-4b and one micro-batch in bf16, as a Markdown table:
//
//   stubs=$(ls build/release/vgpu/*.so | paste -sd:)
//   LD_PRELOAD=$stubs VLMTRAIN_VGPU_NAME=h200 build/release/delta_net_cost SAMPLES ROWS
//
// The projections before and after are Linears and not counted.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/core.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "nn/mixers/delta_inputs.h"
#include "nn/mixers/delta_rule.h"
#include "nn/mixers/triangular_inverse.h"
#include "planner/dry_run/cost_recorder.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/gpu_table.h"
#include "vlmtrain/nn/attention/attention.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain {
namespace {

constexpr nn::GatedDeltaShape kShape{
    .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .kernel_size = 4};

planner::OperationCost measure_cost(const std::function<void()>& work) {
  const char* const name = vgpu::find_virtual_gpu_interface()->gpu_name();
  const planner::CostRecorder recorder(*memory::find_gpu_spec(name), at::kBFloat16);
  work();
  return recorder.costs().total;
}

planner::OperationCost operator-(const planner::OperationCost& a, const planner::OperationCost& b) {
  return {.matmul_flops = a.matmul_flops - b.matmul_flops,
          .misaligned_matmul_flops = a.misaligned_matmul_flops - b.misaligned_matmul_flops,
          .bytes_moved = a.bytes_moved - b.bytes_moved,
          .num_kernel_launches = a.num_kernel_launches - b.num_kernel_launches};
}

void print_row(const char* operation, const planner::OperationCost& cost) {
  fmt::print("| {} | {} | {:.2f} | {:.1f} |\n", operation, cost.num_kernel_launches, cost.bytes_moved / 1e9,
             cost.matmul_flops / 1e9);
}

void print_table(int64_t samples, int64_t rows_per_sample) {
  const at::Device device = memory::open_device("cuda");
  const auto layout =
      nn::ChunkLayout::make(nn::Segments::uniform(samples, rows_per_sample, device), kShape.num_history_rows(), device);
  const auto make = [&](at::IntArrayRef sizes) {
    return at::empty(sizes, at::TensorOptions(at::kBFloat16).device(device));
  };
  const int64_t rows = samples * rows_per_sample;
  const nn::DeltaProjections projections{.qkv = make({rows, kShape.num_channels()}),
                                         .beta = make({rows, kShape.value_heads}),
                                         .step = make({rows, kShape.value_heads}),
                                         .convolution = make({kShape.num_channels(), 1, kShape.kernel_size}),
                                         .a_log = make({kShape.value_heads}),
                                         .step_bias = make({kShape.value_heads})};

  std::optional<nn::ChunkedDeltaInputs> chunked;
  const auto inputs_cost = measure_cost([&] { chunked.emplace(projections, kShape, layout); });
  const nn::DeltaRuleInputs inputs = chunked->inputs();
  const at::Tensor systems =
      at::empty({layout.num_chunks * kShape.value_heads, nn::kChunkRows, nn::kChunkRows}, inputs.value.options());
  const auto inverse_cost = measure_cost([&] { nn::invert_unit_lower(systems); });

  const auto& steps = layout.chunks_per_step;
  const auto rule_cost = measure_cost([&] { nn::delta_rule(inputs, steps, /*with_states=*/false); });
  const at::Tensor gradient = at::empty_like(inputs.value);
  nn::DeltaRuleInputs gradients;
  const auto rule_backward_cost = measure_cost([&] { gradients = nn::delta_rule_backward(inputs, steps, gradient); });
  const auto inputs_backward_cost =
      measure_cost([&] { std::move(*chunked).backward(std::move(gradients), {.convolution = false, .gates = false}); });

  fmt::print("| operation | launches | moved, GB | matmuls, GFLOP |\n|---|---|---|---|\n");
  print_row("convolution, SiLU, L2 norms, gates", inputs_cost);
  print_row("triangular inverse, in both passes", inverse_cost);
  print_row("delta rule without the inverse", rule_cost - inverse_cost);
  print_row("its backward pass", rule_backward_cost - inverse_cost);
  print_row("backward pass of convolution, SiLU, L2 norms, gates", inputs_backward_cost);
  fmt::print("\nSteps of a scan: {}\n", steps.size());
}

}  // namespace
}  // namespace vlmtrain

int main(int argc, char** argv) {
  if (argc != 3 || vlmtrain::vgpu::find_virtual_gpu_interface() == nullptr) {
    fmt::print(stderr, "usage: delta_net_cost SAMPLES ROWS, on the virtual GPU (see the head of the source)\n");
    return 2;
  }
  vlmtrain::print_table(std::atoll(argv[1]), std::atoll(argv[2]));
  return 0;
}
