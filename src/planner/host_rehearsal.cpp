#include "planner/host_rehearsal.h"

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

#include "planner/host_kernels.h"

namespace vlmtrain::planner {

namespace {

/// Operations of two tensors that the CPU does in their common type: it first makes copies of those of other types.
constexpr std::string_view kConvertingOperations[] = {"aten::add", "aten::add_", "aten::sub", "aten::sub_",
                                                      "aten::mul", "aten::mul_", "aten::div", "aten::div_"};

/// Products of matrices.
constexpr std::string_view kProducts[] = {"aten::mm", "aten::addmm", "aten::bmm"};

/// Copies of inputs, for as long as the operation goes on.
struct CopiedInputs final : at::ObserverContext {
  std::vector<at::Tensor> copies;
};

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

std::unique_ptr<CopiedInputs> converted(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == b.scalar_type()) return nullptr;
  const at::ScalarType common = at::result_type(a, b);
  auto copied = std::make_unique<CopiedInputs>();
  for (const at::Tensor& tensor : {a, b}) {
    if (tensor.scalar_type() != common) {
      copied->copies.push_back(at::empty(tensor.sizes(), tensor.options().dtype(common)));
    }
  }
  return copied;
}

std::unique_ptr<CopiedInputs> repacked(const at::Tensor& a, const at::Tensor& b) {
  const int64_t count = repacked_factors(a.scalar_type());
  if (a.scalar_type() == at::kFloat || count == 0) return nullptr;  // fp32: MKL, which has memory of its own
  auto copied = std::make_unique<CopiedInputs>();
  copied->copies.push_back(at::empty(b.sizes(), b.options()));
  if (count > 1) copied->copies.push_back(at::empty(a.sizes(), a.options()));
  return copied;
}

std::unique_ptr<at::ObserverContext> copy_inputs(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const bool is_product = is_one_of(name, kProducts);
  if (!is_product && !is_one_of(name, kConvertingOperations)) return nullptr;
  const auto inputs = function.inputs();
  const size_t first = name == "aten::addmm" ? 1 : 0;  // behind what is added
  if (inputs.size() < first + 2 || !inputs[first].isTensor() || !inputs[first + 1].isTensor()) return nullptr;
  const at::Tensor a = inputs[first].toTensor(), b = inputs[first + 1].toTensor();
  if (!a.is_meta()) return nullptr;
  return is_product ? repacked(a, b) : converted(a, b);
}

class CopiesCounted {
 public:
  CopiesCounted()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(copy_inputs).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}
  ~CopiesCounted() { at::removeCallback(handle_); }
  CopiesCounted(const CopiesCounted&) = delete;
  CopiesCounted& operator=(const CopiesCounted&) = delete;

 private:
  at::CallbackHandle handle_;
};

/// Before the model is built, whose tables need kernels.
const Job& with_kernels(const Job& job) {
  describe_cpu_kernels();
  return job;
}

}  // namespace

HostRehearsal::HostRehearsal(const Job& job, Detail detail, bool trains)
    : trace_(detail == Detail::kNone ? nullptr : std::make_unique<memory::AllocationTrace>(at::kMeta)),
      run_(with_kernels(job), at::kMeta, trains) {}

StepPeaks HostRehearsal::evaluate(const EvaluatedBatch& batch) {
  memory_.reset_peak();
  const int64_t small_bytes = memory_.small_live_bytes();
  {
    const CopiesCounted copies;
    run_.evaluate(batch);
  }
  return {memory_.peak_bytes(), memory_.peak_bytes() + memory_.small_peak_bytes() - small_bytes};
}

Outcome HostRehearsal::step(const Choices& choices, const std::vector<SampleGroup>& samples) {
  return step(layout_of(choices, shapes_of(samples)), samples);
}

Outcome HostRehearsal::step(const engine::StepLayout& layout, const std::vector<SampleGroup>& samples) {
  const auto start = std::chrono::steady_clock::now();
  const size_t first = trace_ ? trace_->events().size() : 0;
  memory_.reset_peak();
  const int64_t small_bytes = memory_.small_live_bytes();
  {
    const CopiesCounted copies;
    run_.step(samples, layout);
  }
  Outcome outcome;
  const int64_t kept_bytes = memory_.small_peak_bytes() - small_bytes;
  outcome.steps.push_back({memory_.peak_bytes(), memory_.peak_bytes() + kept_bytes});
  outcome.detail = RehearsalDetail{.peak = trace_ ? memory::find_peak(trace_->events(), first) : memory::Peak{},
                                   .vision_blocks = run_.model().vision_blocks(),
                                   .language_blocks = run_.model().language_blocks(),
                                   .total_elements = run_.model().parameters().total_elements(),
                                   .trained_elements = run_.training().optimizer.trained_elements(),
                                   .timeline = {}};
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

}  // namespace vlmtrain::planner
