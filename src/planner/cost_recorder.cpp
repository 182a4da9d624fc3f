#include "planner/cost_recorder.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string_view>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/place.h"

namespace vlmtrain::planner {

namespace {

// Shares of a data sheet's peak that well-made kernels reach. Those of products are fitted to published training speeds
// (docs/benchmarks/published-speeds.md): less where tensor cores run at full rate, probably since they draw more power
// than a card may take at the boost clock of its sheet, than on GeForce cards, whose tensor cores do with sums in fp32
// at most twice what their other units do. FlashAttention-2 reports about half of an A100's peak in both passes (arXiv
// 2307.08691, section 4.1); its kernels use the instructions of an A100, and reach a fifth of an H200's. Copies reach
// four fifths of a memory's bandwidth. What was measured on an H200 is in docs/benchmarks/first-gpu-hour.md.
constexpr double kProductEfficiency = 0.66;
constexpr double kHalfRateProductEfficiency = 0.92;
constexpr double kHalfRateFactor = 2;
constexpr double kAttentionEfficiency = 0.45;
constexpr double kHopperAttentionEfficiency = 0.20;
/// Of a product with a matrix whose rows do not all begin at 16 bytes: on an H200 cuBLAS has none but an A100's kernels
/// for it, which read 4 bytes at a time.
constexpr double kHopperMisalignedShare = 0.36;
constexpr int64_t kAlignment = 16;
/// FlashAttention-2 computes heads as large as the next multiple.
constexpr double kHeadSizes = 32;
constexpr double kBandwidthEfficiency = 0.8;
/// From the start of a kernel that does nothing to the start of the next one.
constexpr double kSecondsPerLaunch = 4e-6;
/// A causal mask leaves half of the pairs.
constexpr double kCausalShare = 0.5;
constexpr double kBackwardAttentionFactor = 2.5;

struct Rates {
  double product_operations = 0;  // a second, at the assumed efficiency
  double misaligned_product_operations = 0;
  double attention_operations = 0;
  double bytes = 0;
};

Rates rates_of(const memory::Gpu& gpu, at::ScalarType dtype) {
  double peak = gpu.fp32_operations;
  if (dtype == at::kBFloat16 && gpu.bf16_operations > 0) peak = gpu.bf16_operations;
  if (dtype == at::kHalf && gpu.fp16_operations > 0) peak = gpu.fp16_operations;
  const bool half_rate = peak > gpu.fp32_operations && peak <= gpu.fp32_operations * kHalfRateFactor;
  // Those for data centres that have matrix instructions of their own; the B200 is taken to be like the H200.
  const bool is_hopper = gpu.architecture >= 90 && gpu.architecture < 120;
  const double products = peak * (half_rate ? kHalfRateProductEfficiency : kProductEfficiency);
  return {.product_operations = products,
          .misaligned_product_operations = products * (is_hopper ? kHopperMisalignedShare : 1),
          .attention_operations = peak * (is_hopper ? kHopperAttentionEfficiency : kAttentionEfficiency),
          .bytes = gpu.memory_bandwidth * kBandwidthEfficiency};
}

double bytes_of(const c10::IValue& value) {
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

/// An attention operation by name: where among its arguments the query and the longest segment stand.
struct AttentionOperation {
  std::string_view name;
  size_t query;
  size_t longest_segment;
  size_t causal;
  double factor;
};

constexpr AttentionOperation kAttentionOperations[] = {
    {"aten::_flash_attention_forward", 0, 5, 8, 1.0},
    {"aten::_flash_attention_backward", 1, 8, 11, kBackwardAttentionFactor},
    {"aten::_efficient_attention_forward", 0, 6, 9, 1.0},
    {"aten::_efficient_attention_backward", 1, 8, 14, kBackwardAttentionFactor},
};

struct AttentionWork {
  double operations = 0;  ///< 0 for an operation that is not attention
  double computed = 0;    ///< with heads as large as kernels have them
};

/// Segments are taken to be as long as the longest.
AttentionWork attention_work(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const auto* const found =
      std::find_if(std::begin(kAttentionOperations), std::end(kAttentionOperations),
                   [name](const AttentionOperation& operation) { return operation.name == name; });
  if (found == std::end(kAttentionOperations)) return {};
  const auto inputs = function.inputs();
  const at::Tensor& query = inputs[found->query].toTensor();  // […, rows, heads, head size]
  const auto rows = static_cast<double>(query.size(-3));
  const auto heads = static_cast<double>(query.size(-2)), head_size = static_cast<double>(query.size(-1));
  const auto longest = static_cast<double>(inputs[found->longest_segment].toInt());
  const c10::IValue& causal_argument = inputs[found->causal];
  const bool causal = causal_argument.isBool() ? causal_argument.toBool() : causal_argument.toInt() != 0;
  const double a_feature = found->factor * 4.0 * rows * longest * heads * (causal ? kCausalShare : 1.0);
  return {a_feature * head_size, a_feature * std::ceil(head_size / kHeadSizes) * kHeadSizes};
}

/// Whether all rows of a matrix, or columns, begin and end at 16 bytes.
bool is_aligned(const c10::IValue& value) {
  if (!value.isTensor()) return true;
  const at::Tensor& tensor = value.toTensor();
  if (!tensor.defined() || !tensor.is_cuda() || tensor.dim() < 2) return true;
  const auto item = static_cast<int64_t>(tensor.itemsize());
  if (tensor.storage_offset() * item % kAlignment != 0) return false;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    const int64_t elements = tensor.stride(i) == 1 ? tensor.size(i) : tensor.stride(i);
    if (elements * item % kAlignment != 0) return false;
  }
  return true;
}

template <class Values>
bool are_aligned(const Values& values) {
  return std::ranges::all_of(values, is_aligned);
}

/// What the process has done so far.
struct Reading {
  uint64_t launches = 0;
  uint64_t product_operations = 0;

  static Reading now() {
    vgpu::Counters counters;
    vgpu::attached()->read(&counters);
    return {counters.launches + counters.products, counters.product_operations};
  }
};

/// The one recorder of the process: RecordFunction's callbacks are plain functions.
class Totals {
 public:
  void reset(const Rates& rates) {
    const std::lock_guard lock(mutex_);
    rates_ = rates;
    costs_ = {};
  }

  void add(const Reading& work, const AttentionWork& attention, double bytes, bool is_aligned) {
    Cost cost;
    cost.launches = static_cast<int64_t>(work.launches);
    cost.product_operations = static_cast<double>(work.product_operations);
    cost.attention_operations = attention.operations;
    const memory::Place place = memory::current_place();
    const bool forward = !memory::in_backward();

    const std::lock_guard lock(mutex_);
    const bool computes = cost.product_operations > 0 || cost.attention_operations > 0;
    if (!computes) cost.bytes_moved = bytes;
    const double products = is_aligned ? rates_.product_operations : rates_.misaligned_product_operations;
    cost.seconds = std::max({cost.product_operations / products, attention.computed / rates_.attention_operations,
                             bytes / rates_.bytes, static_cast<double>(cost.launches) * kSecondsPerLaunch});
    costs_.total += cost;
    if (place.component == memory::Component::kOptimizer) costs_.optimizer += cost;
    if (!forward || place.block < 0) return;
    if (place.component == memory::Component::kVision || place.component == memory::Component::kMasks)
      costs_.vision_blocks_forward += cost;
    if (place.component != memory::Component::kLanguage) return;
    costs_.language_blocks_forward += cost;
    if (cost.attention_operations > 0) costs_.language_attention_forward += cost;
  }

  StepCosts costs() const {
    const std::lock_guard lock(mutex_);
    return costs_;
  }

 private:
  mutable std::mutex mutex_;
  Rates rates_;
  StepCosts costs_;
};

Totals& totals() {
  static Totals instance;
  return instance;
}

/// An operation that runs now; those that it calls count for themselves.
struct Running : at::ObserverContext {
  Reading before;
  Reading of_callees;
  AttentionWork attention;
  double bytes = 0;
  bool is_aligned = true;
  Running* caller = nullptr;
};

thread_local Running* innermost = nullptr;

bool is_written(const c10::AliasInfo* alias) {
  return alias != nullptr &&
         (alias->isWrite() || std::ranges::any_of(alias->containedTypes(), &c10::AliasInfo::isWrite));
}

/// Bytes of inputs that an operation on lists writes in place; other operations give what they write as well.
double bytes_written_in_place(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (!name.starts_with("aten::_foreach_") && !name.starts_with("aten::_fused_")) return 0;
  const auto schema = function.operator_schema();
  if (!schema || !schema->returns().empty()) return 0;
  const auto inputs = function.inputs();
  double bytes = 0;
  for (size_t i = 0; i < std::min(inputs.size(), schema->arguments().size()); ++i) {
    if (is_written(schema->arguments()[i].alias_info())) bytes += bytes_of(inputs[i]);
  }
  return bytes;
}

template <class Values>
double bytes_of_all(const Values& values) {
  double bytes = 0;
  for (const auto& value : values) bytes += bytes_of(value);
  return bytes;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto running = std::make_unique<Running>();
  // The inputs can be seen here only.
  running->attention = attention_work(function);
  running->bytes = bytes_of_all(function.inputs()) + bytes_written_in_place(function);
  running->is_aligned = are_aligned(function.inputs());
  running->before = Reading::now();
  running->caller = std::exchange(innermost, running.get());
  return running;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* const running = static_cast<Running*>(context);
  innermost = running->caller;
  const Reading after = Reading::now();
  const Reading all{after.launches - running->before.launches,
                    after.product_operations - running->before.product_operations};
  if (innermost != nullptr) {
    innermost->of_callees.launches += all.launches;
    innermost->of_callees.product_operations += all.product_operations;
  }
  const Reading own{all.launches - running->of_callees.launches,
                    all.product_operations - running->of_callees.product_operations};
  if (own.launches == 0) return;
  const auto& outputs = function.outputs();
  totals().add(own, running->attention, running->bytes + bytes_of_all(outputs),
               running->is_aligned && are_aligned(outputs));
}

}  // namespace

Cost& Cost::operator+=(const Cost& other) {
  product_operations += other.product_operations;
  attention_operations += other.attention_operations;
  bytes_moved += other.bytes_moved;
  launches += other.launches;
  seconds += other.seconds;
  return *this;
}

CostRecorder::CostRecorder(const memory::Gpu& gpu, at::ScalarType dtype) {
  VLMTRAIN_CHECK(vgpu::attached() != nullptr, "operations are counted on a virtual card only");
  totals().reset(rates_of(gpu, dtype));
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(begin, end).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
}

CostRecorder::~CostRecorder() {
  at::removeCallback(handle_);
}

StepCosts CostRecorder::costs() const {
  return totals().costs();
}

}  // namespace vlmtrain::planner
