#include "planner/cost_recorder.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
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
// 2307.08691, section 4.1); copies reach four fifths of a memory's bandwidth.
constexpr double kProductEfficiency = 0.65;
constexpr double kHalfRateProductEfficiency = 0.92;
constexpr double kHalfRateFactor = 2;
constexpr double kAttentionEfficiency = 0.45;
constexpr double kBandwidthEfficiency = 0.8;
/// From the start of a kernel that does nothing to the start of the next one.
constexpr double kSecondsPerLaunch = 4e-6;
/// A causal mask leaves half of the pairs.
constexpr double kCausalShare = 0.5;
constexpr double kBackwardAttentionFactor = 2.5;

struct Rates {
  double product_operations = 0;  // a second, at the assumed efficiency
  double attention_operations = 0;
  double bytes = 0;
};

Rates rates_of(const memory::Gpu& gpu, at::ScalarType dtype) {
  double peak = gpu.fp32_operations;
  if (dtype == at::kBFloat16 && gpu.bf16_operations > 0) peak = gpu.bf16_operations;
  if (dtype == at::kHalf && gpu.fp16_operations > 0) peak = gpu.fp16_operations;
  const bool half_rate = peak > gpu.fp32_operations && peak <= gpu.fp32_operations * kHalfRateFactor;
  return {peak * (half_rate ? kHalfRateProductEfficiency : kProductEfficiency), peak * kAttentionEfficiency,
          gpu.memory_bandwidth * kBandwidthEfficiency};
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

/// 0 for an operation that is not attention. Segments are taken to be as long as the longest.
double attention_operations(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const auto* const found =
      std::find_if(std::begin(kAttentionOperations), std::end(kAttentionOperations),
                   [name](const AttentionOperation& operation) { return operation.name == name; });
  if (found == std::end(kAttentionOperations)) return 0;
  const auto inputs = function.inputs();
  const at::Tensor& query = inputs[found->query].toTensor();  // […, rows, heads, head size]
  const auto rows = static_cast<double>(query.size(-3));
  const auto heads_by_size = static_cast<double>(query.size(-2) * query.size(-1));
  const auto longest = static_cast<double>(inputs[found->longest_segment].toInt());
  const c10::IValue& causal_argument = inputs[found->causal];
  const bool causal = causal_argument.isBool() ? causal_argument.toBool() : causal_argument.toInt() != 0;
  return found->factor * 4.0 * rows * longest * heads_by_size * (causal ? kCausalShare : 1.0);
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

  void add(const Reading& work, double attention_operations, double bytes) {
    Cost cost;
    cost.launches = static_cast<int64_t>(work.launches);
    cost.product_operations = static_cast<double>(work.product_operations);
    cost.attention_operations = attention_operations;
    const memory::Place place = memory::current_place();
    const bool forward = !memory::in_backward();

    const std::lock_guard lock(mutex_);
    const bool computes = cost.product_operations > 0 || cost.attention_operations > 0;
    if (!computes) cost.bytes_moved = bytes;
    cost.seconds = std::max({cost.product_operations / rates_.product_operations,
                             cost.attention_operations / rates_.attention_operations, bytes / rates_.bytes,
                             static_cast<double>(cost.launches) * kSecondsPerLaunch});
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
  double attention_operations = 0;
  double bytes = 0;
  Running* caller = nullptr;
};

thread_local Running* innermost = nullptr;

template <class Values>
double bytes_of_all(const Values& values) {
  double bytes = 0;
  for (const auto& value : values) bytes += bytes_of(value);
  return bytes;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto running = std::make_unique<Running>();
  // The inputs can be seen here only.
  running->attention_operations = attention_operations(function);
  running->bytes = bytes_of_all(function.inputs());
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
  totals().add(own, running->attention_operations, running->bytes + bytes_of_all(function.outputs()));
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
