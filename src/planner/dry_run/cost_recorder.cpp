#include "planner/dry_run/cost_recorder.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string_view>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/memory_tag.h"

namespace vlmtrain::planner {

namespace {

// Efficiencies: the fractions of a data sheet's peak that good kernels reach.
//
// Matmuls: fitted to published training speeds (docs/benchmarks/published.md). GeForce
// tensor cores that accumulate in fp32 run at half rate and come closer to their peak. At full
// rate, kernels probably exceed the power limit at the data sheet's boost clock.
//
// Attention: FlashAttention-2 reports about half of an A100's peak in both passes (arXiv
// 2307.08691, section 4.1). Its kernels use A100 instructions and reach a fifth of an H200's peak
// (measured on 2026-11-26).
//
// Memory: copies reach about four fifths of the bandwidth. Not fitted.
constexpr double kMatmulEfficiency = 0.66;
constexpr double kHalfRateMatmulEfficiency = 0.92;
/// A peak of at most this multiple of the fp32 peak means tensor cores at half rate.
constexpr double kMaxHalfRateTensorCoreSpeedup = 2;
constexpr double kAttentionEfficiency = 0.45;
constexpr double kHopperAttentionEfficiency = 0.20;
/// Factor for matmuls with a matrix whose columns are not all aligned to 16 bytes
/// (vgpu::MatmulShape). On an H200, cuBLAS has only A100 kernels for them, which read 4 bytes at a
/// time.
constexpr double kHopperMisalignedMatmulFactor = 0.36;
/// FlashAttention-2 pads head sizes to multiples of this number.
constexpr double kHeadSizeMultiple = 32;
constexpr double kMemoryBandwidthEfficiency = 0.8;
/// Time from the start of an empty kernel to the start of the next one. Not tested, since large
/// micro-batches hide it.
constexpr double kSecondsPerKernelLaunch = 4e-6;
/// A causal mask halves the number of query-key pairs.
constexpr double kCausalMaskFlopsFraction = 0.5;
/// FLOPs of the backward pass relative to the forward pass: five matmuls instead of two.
constexpr double kBackwardAttentionFactor = 2.5;

/// FLOPs and bytes per second at the assumed efficiencies.
struct Throughputs {
  double matmul_flops_per_second = 0;
  double misaligned_matmul_flops_per_second = 0;
  double attention_flops_per_second = 0;
  double memory_bytes_per_second = 0;
};

Throughputs compute_throughputs(const memory::GpuSpec& gpu, at::ScalarType dtype) {
  double peak = gpu.fp32_flops;
  if (dtype == at::kBFloat16 && gpu.bf16_flops > 0) peak = gpu.bf16_flops;
  if (dtype == at::kHalf && gpu.fp16_flops > 0) peak = gpu.fp16_flops;
  const bool has_half_rate_tensor_cores =
      peak > gpu.fp32_flops && peak <= gpu.fp32_flops * kMaxHalfRateTensorCoreSpeedup;
  // Data-center GPUs with matrix instructions of their own generation. The B200 is assumed to
  // behave like the H200.
  const bool is_hopper = gpu.architecture >= 90 && gpu.architecture < 120;
  const double matmul_flops_per_second =
      peak * (has_half_rate_tensor_cores ? kHalfRateMatmulEfficiency : kMatmulEfficiency);
  return {
      .matmul_flops_per_second = matmul_flops_per_second,
      .misaligned_matmul_flops_per_second = matmul_flops_per_second * (is_hopper ? kHopperMisalignedMatmulFactor : 1),
      .attention_flops_per_second = peak * (is_hopper ? kHopperAttentionEfficiency : kAttentionEfficiency),
      .memory_bytes_per_second = gpu.memory_bandwidth * kMemoryBandwidthEfficiency};
}

/// Returns the bytes of the CUDA tensors in an argument.
double count_tensor_bytes(const c10::IValue& value) {
  const auto tensor_bytes = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_cuda() ? static_cast<double>(tensor.nbytes()) : 0.0;
  };
  if (value.isTensor()) return tensor_bytes(value.toTensor());
  double bytes = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) bytes += tensor_bytes(tensor);
  }
  return bytes;
}

/// An attention operation: its name, the indices of some of its arguments, and its FLOPs relative
/// to the forward pass. The indices are those of ATen's native_functions.yaml.
struct AttentionOperator {
  std::string_view name;
  size_t query_index;
  size_t max_seqlen_index;  // of the argument max_q or max_seqlen_q
  size_t causal_index;      // of the argument is_causal or custom_mask_type
  double flops_factor;
};

constexpr AttentionOperator kAttentionOperators[] = {
    {"aten::_flash_attention_forward", 0, 5, 8, 1.0},
    {"aten::_flash_attention_backward", 1, 8, 11, kBackwardAttentionFactor},
    {"aten::_efficient_attention_forward", 0, 6, 9, 1.0},
    {"aten::_efficient_attention_backward", 1, 8, 14, kBackwardAttentionFactor},
};

struct AttentionFlops {
  double flops = 0;         ///< 0 if the operation is not attention
  double padded_flops = 0;  ///< the same with padded head sizes, which determine the duration
};

/// Returns the FLOPs of an attention operation. Assumes that all sequences are as long as the
/// longest.
AttentionFlops count_attention_flops(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const auto* const entry = std::find_if(std::begin(kAttentionOperators), std::end(kAttentionOperators),
                                         [name](const AttentionOperator& operation) { return operation.name == name; });
  if (entry == std::end(kAttentionOperators)) return {};
  const auto inputs = function.inputs();
  const at::Tensor& query_tensor = inputs[entry->query_index].toTensor();  // [..., rows, heads, head size]
  const auto rows = static_cast<double>(query_tensor.size(-3));
  const auto heads = static_cast<double>(query_tensor.size(-2)), head_size = static_cast<double>(query_tensor.size(-1));
  const auto max_seqlen = static_cast<double>(inputs[entry->max_seqlen_index].toInt());
  const c10::IValue& causal_argument = inputs[entry->causal_index];
  const bool is_causal = causal_argument.isBool() ? causal_argument.toBool() : causal_argument.toInt() != 0;
  const double flops_per_feature =
      entry->flops_factor * 4.0 * rows * max_seqlen * heads * (is_causal ? kCausalMaskFlopsFraction : 1.0);
  return {flops_per_feature * head_size,
          flops_per_feature * std::ceil(head_size / kHeadSizeMultiple) * kHeadSizeMultiple};
}

/// Counters of the process since its start.
struct CounterSnapshot {
  uint64_t num_kernel_launches = 0;
  uint64_t matmul_flops = 0;
  uint64_t misaligned_matmul_flops = 0;

  static CounterSnapshot take() {
    vgpu::GpuCounters counters;
    vgpu::find_virtual_gpu_interface()->read_counters(&counters);
    return {counters.num_launches + counters.num_matmuls, counters.matmul_flops, counters.misaligned_matmul_flops};
  }

  CounterSnapshot operator-(const CounterSnapshot& other) const {
    return {num_kernel_launches - other.num_kernel_launches, matmul_flops - other.matmul_flops,
            misaligned_matmul_flops - other.misaligned_matmul_flops};
  }
  CounterSnapshot& operator+=(const CounterSnapshot& other) {
    num_kernel_launches += other.num_kernel_launches;
    matmul_flops += other.matmul_flops;
    misaligned_matmul_flops += other.misaligned_matmul_flops;
    return *this;
  }
};

/// The recorded costs. The process has one instance (get_cost_totals()), since callbacks of
/// RecordFunction are plain functions. Thread-safe.
class CostTotals {
 public:
  void reset(const Throughputs& rates) {
    const std::lock_guard lock(mutex_);
    throughputs_ = rates;
    costs_ = {};
  }

  /// Adds an operation: its kernel launches and matmul FLOPs in `work`, and the bytes of its inputs
  /// and outputs.
  void add(const CounterSnapshot& work, const AttentionFlops& attention, double bytes) {
    OperationCost cost;
    cost.num_kernel_launches = static_cast<int64_t>(work.num_kernel_launches);
    cost.matmul_flops = static_cast<double>(work.matmul_flops);
    cost.misaligned_matmul_flops = static_cast<double>(work.misaligned_matmul_flops);
    cost.attention_flops = attention.flops;
    const memory::MemoryTag tag = memory::get_current_memory_tag();
    const bool forward = !memory::is_in_backward();

    const std::lock_guard lock(mutex_);
    const bool has_flops = cost.matmul_flops > 0 || cost.attention_flops > 0;
    if (!has_flops) cost.bytes_moved = bytes;
    const double aligned_matmul_flops = cost.matmul_flops - cost.misaligned_matmul_flops;
    cost.seconds = std::max({aligned_matmul_flops / throughputs_.matmul_flops_per_second +
                                 cost.misaligned_matmul_flops / throughputs_.misaligned_matmul_flops_per_second,
                             attention.padded_flops / throughputs_.attention_flops_per_second,
                             bytes / throughputs_.memory_bytes_per_second,
                             static_cast<double>(cost.num_kernel_launches) * kSecondsPerKernelLaunch});
    costs_.total += cost;
    if (tag.component == memory::Component::kOptimizer) costs_.optimizer += cost;
    if (!forward || tag.block < 0) return;
    if (tag.component == memory::Component::kVision || tag.component == memory::Component::kMasks)
      costs_.vision_blocks_forward += cost;
    if (tag.component != memory::Component::kLanguage) return;
    costs_.language_blocks_forward += cost;
    if (cost.attention_flops > 0) costs_.language_attention_forward += cost;
  }

  StepCosts costs() const {
    const std::lock_guard lock(mutex_);
    return costs_;
  }

 private:
  mutable std::mutex mutex_;
  Throughputs throughputs_;
  StepCosts costs_;
};

CostTotals& get_cost_totals() {
  static CostTotals instance;
  return instance;
}

/// A running operation. The work of operations that it calls is counted in `callee_counts` and
/// subtracted.
struct OperationFrame : at::ObserverContext {
  CounterSnapshot start;
  CounterSnapshot callee_counts;
  AttentionFlops attention;
  double bytes = 0;
  OperationFrame* caller_frame = nullptr;
};

thread_local OperationFrame* current_frame = nullptr;

bool is_written_argument(const c10::AliasInfo* alias) {
  return alias != nullptr &&
         (alias->isWrite() || std::ranges::any_of(alias->containedTypes(), &c10::AliasInfo::isWrite));
}

/// Returns the bytes of the inputs that an operation on tensor lists writes in place. Other
/// operations return the tensors that they write, so that these are counted as outputs.
double count_bytes_written_in_place(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (!name.starts_with("aten::_foreach_") && !name.starts_with("aten::_fused_")) return 0;
  const auto schema = function.operator_schema();
  if (!schema || !schema->returns().empty()) return 0;
  const auto inputs = function.inputs();
  double bytes = 0;
  for (size_t i = 0; i < std::min(inputs.size(), schema->arguments().size()); ++i) {
    if (is_written_argument(schema->arguments()[i].alias_info())) bytes += count_tensor_bytes(inputs[i]);
  }
  return bytes;
}

template <class Values>
double sum_tensor_bytes(const Values& values) {
  double bytes = 0;
  for (const auto& value : values) bytes += count_tensor_bytes(value);
  return bytes;
}

std::unique_ptr<at::ObserverContext> on_operation_start(const at::RecordFunction& function) {
  auto frame = std::make_unique<OperationFrame>();
  // Inputs are available in this callback only.
  frame->attention = count_attention_flops(function);
  frame->bytes = sum_tensor_bytes(function.inputs()) + count_bytes_written_in_place(function);
  frame->start = CounterSnapshot::take();
  frame->caller_frame = std::exchange(current_frame, frame.get());
  return frame;
}

void on_operation_end(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* const frame = static_cast<OperationFrame*>(context);
  current_frame = frame->caller_frame;
  const CounterSnapshot total_counts = CounterSnapshot::take() - frame->start;
  if (current_frame != nullptr) current_frame->callee_counts += total_counts;
  const CounterSnapshot self_counts = total_counts - frame->callee_counts;
  if (self_counts.num_kernel_launches == 0) return;  // views and operations that only call others
  get_cost_totals().add(self_counts, frame->attention, frame->bytes + sum_tensor_bytes(function.outputs()));
}

}  // namespace

OperationCost& OperationCost::operator+=(const OperationCost& other) {
  matmul_flops += other.matmul_flops;
  misaligned_matmul_flops += other.misaligned_matmul_flops;
  attention_flops += other.attention_flops;
  bytes_moved += other.bytes_moved;
  num_kernel_launches += other.num_kernel_launches;
  seconds += other.seconds;
  return *this;
}

CostRecorder::CostRecorder(const memory::GpuSpec& gpu, at::ScalarType dtype) {
  VLMTRAIN_CHECK(vgpu::find_virtual_gpu_interface() != nullptr, "operations are counted only on a virtual GPU");
  get_cost_totals().reset(compute_throughputs(gpu, dtype));
  callback_handle_ = at::addGlobalCallback(at::RecordFunctionCallback(on_operation_start, on_operation_end)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}));
}

CostRecorder::~CostRecorder() {
  at::removeCallback(callback_handle_);
}

StepCosts CostRecorder::costs() const {
  return get_cost_totals().costs();
}

}  // namespace vlmtrain::planner
