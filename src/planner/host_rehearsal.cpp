#include "planner/host_rehearsal.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/result_type.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/host_kernels.h"

namespace vlmtrain::planner {

namespace {

/// Operations of two tensors that the CPU does in their common type: it first makes copies of those of other types.
constexpr std::string_view kConvertingOperations[] = {"aten::add", "aten::add_", "aten::sub", "aten::sub_",
                                                      "aten::mul", "aten::mul_", "aten::div", "aten::div_"};

/// The copies, for as long as the operation goes on.
struct ConvertedInputs final : at::ObserverContext {
  std::vector<at::Tensor> copies;
};

std::unique_ptr<at::ObserverContext> convert_inputs(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (std::ranges::find(kConvertingOperations, name) == std::end(kConvertingOperations)) return nullptr;
  const auto inputs = function.inputs();
  if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor()) return nullptr;
  const std::array tensors{inputs[0].toTensor(), inputs[1].toTensor()};
  if (!tensors[0].is_meta() || tensors[0].scalar_type() == tensors[1].scalar_type()) return nullptr;
  const at::ScalarType common = at::result_type(tensors[0], tensors[1]);
  auto converted = std::make_unique<ConvertedInputs>();
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != common) {
      converted->copies.push_back(at::empty(tensor.sizes(), tensor.options().dtype(common)));
    }
  }
  return converted;
}

class ConversionsCounted {
 public:
  ConversionsCounted()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(convert_inputs).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}
  ~ConversionsCounted() { at::removeCallback(handle_); }
  ConversionsCounted(const ConversionsCounted&) = delete;
  ConversionsCounted& operator=(const ConversionsCounted&) = delete;

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
    const ConversionsCounted conversions;
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
    const ConversionsCounted conversions;
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
