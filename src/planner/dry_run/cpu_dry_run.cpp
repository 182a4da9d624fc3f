#include "planner/dry_run/cpu_dry_run.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/result_type.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain::planner {

namespace {

/// Elementwise operations with two operands. Their CPU kernels first convert operands to their
/// common type.
constexpr std::string_view kTypePromotingOperations[] = {"aten::add", "aten::add_", "aten::sub", "aten::sub_",
                                                         "aten::mul", "aten::mul_", "aten::div", "aten::div_"};

/// Matmuls, whose libraries copy operands into another layout.
constexpr std::string_view kMatmulOperations[] = {"aten::mm", "aten::addmm", "aten::bmm"};

/// The copies of inputs that exist while an operation runs.
struct TemporaryCopies final : at::ObserverContext {
  std::vector<at::Tensor> copies;
};

bool contains(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

/// Returns the operands in their common type, if their types differ.
std::unique_ptr<TemporaryCopies> make_promoted_copies(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == b.scalar_type()) return nullptr;
  const at::ScalarType common_dtype = at::result_type(a, b);
  auto temporary_copies = std::make_unique<TemporaryCopies>();
  for (const at::Tensor& tensor : {a, b}) {
    if (tensor.scalar_type() != common_dtype) {
      temporary_copies->copies.push_back(at::empty(tensor.sizes(), tensor.options().dtype(common_dtype)));
    }
  }
  return temporary_copies;
}

/// Returns the operands that the matmul's library repacks, the second one first.
std::unique_ptr<TemporaryCopies> make_packed_copies(const at::Tensor& a, const at::Tensor& b) {
  const int64_t count = get_num_packed_operands(a.scalar_type());
  if (a.scalar_type() == at::kFloat || count == 0)
    return nullptr;  // MKL computes fp32; its memory is in MemoryLimit::library_bytes
  auto temporary_copies = std::make_unique<TemporaryCopies>();
  temporary_copies->copies.push_back(at::empty(b.sizes(), b.options()));
  if (count > 1) temporary_copies->copies.push_back(at::empty(a.sizes(), a.options()));
  return temporary_copies;
}

/// Allocates the temporary copies that the CPU kernel of an operation makes. RecordFunction frees
/// them at the end of the operation.
std::unique_ptr<at::ObserverContext> make_temporary_copies(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const bool is_matmul = contains(name, kMatmulOperations);
  if (!is_matmul && !contains(name, kTypePromotingOperations)) return nullptr;
  const auto inputs = function.inputs();
  const size_t first_operand_index = name == "aten::addmm" ? 1 : 0;  // after the addend
  if (inputs.size() < first_operand_index + 2 || !inputs[first_operand_index].isTensor() ||
      !inputs[first_operand_index + 1].isTensor())
    return nullptr;
  const at::Tensor a = inputs[first_operand_index].toTensor(), b = inputs[first_operand_index + 1].toTensor();
  if (!a.is_meta()) return nullptr;
  return is_matmul ? make_packed_copies(a, b) : make_promoted_copies(a, b);
}

/// A scope in which the temporary copies of operations on this thread count as memory.
class ScopedCopyCounting {
 public:
  ScopedCopyCounting()
      : callback_handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(make_temporary_copies).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}
  ~ScopedCopyCounting() { at::removeCallback(callback_handle_); }
  ScopedCopyCounting(const ScopedCopyCounting&) = delete;
  ScopedCopyCounting& operator=(const ScopedCopyCounting&) = delete;

 private:
  at::CallbackHandle callback_handle_;
};

/// Registers the meta kernels, which building the model needs, and returns `job`. A function, so
/// that it runs before DryRunSession's constructor.
const Job& register_meta_kernels(const Job& job) {
  register_cpu_meta_kernels();
  return job;
}

}  // namespace

CpuDryRun::CpuDryRun(const Job& job, Detail detail, bool with_training)
    : trace_(detail == Detail::kNone ? nullptr : std::make_unique<memory::AllocationTrace>(at::kMeta)),
      session_(register_meta_kernels(job), at::kMeta, with_training) {}

StepPeaks CpuDryRun::evaluate(const EvaluationBatch& batch) {
  memory_.reset_peak();
  const int64_t small_tensor_live_bytes = memory_.small_tensor_live_bytes();
  {
    const ScopedCopyCounting copy_counting;
    session_.evaluate(batch);
  }
  return {memory_.peak_bytes(), memory_.peak_bytes() + memory_.small_tensor_peak_bytes() - small_tensor_live_bytes};
}

DryRunResult CpuDryRun::step(const StepConfig& step_config, const std::vector<SampleGroup>& samples) {
  return step(make_step_layout(step_config, expand_groups(samples)), samples);
}

DryRunResult CpuDryRun::step(const engine::StepLayout& layout, const std::vector<SampleGroup>& samples) {
  const auto start = std::chrono::steady_clock::now();
  const size_t first_event = trace_ ? trace_->events().size() : 0;
  memory_.reset_peak();
  const int64_t small_tensor_live_bytes = memory_.small_tensor_live_bytes();
  {
    const ScopedCopyCounting copy_counting;
    session_.step(samples, layout);
  }
  DryRunResult result;
  const int64_t malloc_cached_bytes = memory_.small_tensor_peak_bytes() - small_tensor_live_bytes;
  result.steps.push_back({memory_.peak_bytes(), memory_.peak_bytes() + malloc_cached_bytes});
  result.detail =
      DryRunDetail{.peak = trace_ ? memory::find_memory_peak(trace_->events(), first_event) : memory::MemoryPeak{},
                   .num_vision_blocks = session_.model().num_vision_blocks(),
                   .num_language_blocks = session_.model().num_language_blocks(),
                   .num_parameters = session_.model().parameters().count_elements(),
                   .num_trainable_parameters = session_.training_state().optimizer.count_trained_elements(),
                   .timeline = {}};
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace vlmtrain::planner
