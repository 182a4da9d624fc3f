#include "vlmtrain/nn/layers/dropout.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_dropout_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

#include "nn/value_capsule.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local DropoutSegments current_segments;

/// Returns a copy of the device's default generator, so that draws do not change the global state.
at::Generator clone_default_generator(at::Device device) {
  at::Generator shared_generator = at::globalContext().defaultGenerator(device.is_cuda() ? device : at::kCPU);
  const std::lock_guard<std::mutex> lock(shared_generator.mutex());
  return shared_generator.clone();
}

/// Returns the random streams of the scope's segments for a stream of `rows` rows.
std::vector<kernels::DropoutStream> make_dropout_streams(int64_t rows, uint64_t layer) {
  VLMTRAIN_CHECK(current_segments && !current_segments->empty(), "dropout requires a DropoutScope");
  const auto& segments = *current_segments;
  const int64_t total_row_weight =
      std::accumulate(segments.begin(), segments.end(), int64_t{0},
                      [](int64_t sum, const DropoutSegment& segment) { return sum + segment.row_weight; });
  std::vector<kernels::DropoutStream> streams;
  streams.reserve(segments.size());
  int64_t first = 0;
  for (const DropoutSegment& segment : segments) {
    VLMTRAIN_CHECK(segment.row_weight * rows % total_row_weight == 0,
                   "{} rows are not divisible: a dropout segment has {} of total row weight {}", rows,
                   segment.row_weight, total_row_weight);
    streams.push_back({.key = derive_stream_seed(segment.seed, "dropout", {layer}), .first_row = first});
    first += segment.row_weight * rows / total_row_weight;
  }
  return streams;
}

/// Draws masks with ATen's generators, one launch per random stream. Returns bool [consumers, rows,
/// columns].
at::Tensor sample_masks(const at::Tensor& x, int64_t consumers, const kernels::DropoutParams& args) {
  const int64_t rows = x.size(0);
  at::Tensor masks = at::empty({consumers, rows, x.size(1)}, x.options().dtype(at::kBool));
  // Up to this size one launch draws the elements of a strided tensor in order. Above it, ATen
  // splits such tensors by position, which would change the mask.
  const bool fits_one_launch =
      args.streams.size() == 1 || consumers == 1 || masks.numel() <= std::numeric_limits<int32_t>::max();
  at::Generator generator = clone_default_generator(x.device());
  for (size_t i = 0; i < args.streams.size(); ++i) {
    const auto [key, first] = args.streams[i];
    const int64_t end = i + 1 < args.streams.size() ? args.streams[i + 1].first_row : rows;
    generator.set_current_seed(key);
    at::Tensor segment_mask = masks.narrow(1, first, end - first);
    if (fits_one_launch) {
      segment_mask.bernoulli_(1 - args.probability, generator);
    } else {
      segment_mask.copy_(
          at::empty(segment_mask.sizes(), segment_mask.options()).bernoulli_(1 - args.probability, generator));
    }
  }
  return masks;
}

/// Dropout for a single consumer. Saves the mask, or the arguments to recompute it.
struct SegmentDropoutFunction : torch::autograd::Function<SegmentDropoutFunction> {
  using DropoutCapsule = ValueCapsule<IndependentDropouts>;

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<DropoutCapsule>& capsule) {
    at::Tensor result = apply_dropout(capsule->value, x);
    context->save_for_backward({capsule->value.take_masks()});
    context->saved_data["dropout"] = c10::IValue::make_capsule(capsule);
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = c10::static_intrusive_pointer_cast<DropoutCapsule>(context->saved_data["dropout"].toCapsule());
    IndependentDropouts dropout = capsule->value;
    dropout.set_masks(context->get_saved_variables()[0]);
    return {apply_dropout(dropout, gradients[0]), {}};
  }

 private:
  static at::Tensor apply_dropout(const IndependentDropouts& dropout, const at::Tensor& x) {
    at::Tensor result;
    dropout.apply(x, [&](int64_t /*consumer*/, const at::Tensor& output) { result = output; });
    return result;
  }
};

}  // namespace

DropoutScope::DropoutScope(std::vector<DropoutSegment> segments)
    : DropoutScope(std::make_shared<const std::vector<DropoutSegment>>(std::move(segments))) {}

DropoutScope::DropoutScope(DropoutSegments segments)
    : outer_segments_(std::exchange(current_segments, std::move(segments))) {}

DropoutScope::~DropoutScope() {
  current_segments = std::move(outer_segments_);
}

const DropoutSegments& DropoutScope::current() {
  return current_segments;
}

IndependentDropouts::IndependentDropouts(const at::Tensor& x, int64_t consumers, double probability, uint64_t layer)
    : num_consumers_(consumers), probability_(probability), dropout_streams_(make_dropout_streams(x.size(0), layer)) {
  if (!kernels::is_available(kernels::Kernel::kDropout, x)) masks_ = sample_masks(x, consumers, make_dropout_params());
}

void IndependentDropouts::apply(const at::Tensor& x,
                                const std::function<void(int64_t consumer, const at::Tensor& output)>& consume) const {
  const at::NoGradGuard no_gradients;
  if (regenerates_masks()) {
    // A single consumer gets a tensor of its own, because an autograd function may return it, and
    // views as results are restricted.
    const at::Tensor all = num_consumers_ == 1 ? at::empty(x.sizes(), x.options())
                                               : at::empty({num_consumers_, x.size(0), x.size(1)}, x.options());
    kernels::dropout(all, x.contiguous(), make_dropout_params());
    for (int64_t i = 0; i < num_consumers_; ++i) consume(i, num_consumers_ == 1 ? all : all[i]);
    return;
  }
  for (int64_t i = 0; i < num_consumers_; ++i) {
    consume(i, at::native_dropout_backward(x, masks_[i], 1 / (1 - probability_)));  // one kernel: x · mask · scale
  }
}

void IndependentDropouts::add_consumer_gradients(
    const at::Tensor& sum,
    const std::function<at::Tensor(int64_t consumer, const at::Tensor& out)>& compute_gradient) const {
  const at::NoGradGuard no_gradients;
  if (regenerates_masks()) {
    const at::Tensor gradients = at::empty({num_consumers_, sum.size(0), sum.size(1)}, sum.options());
    for (int64_t i = 0; i < num_consumers_; ++i) compute_gradient(i, gradients[i]);
    kernels::dropout_backward(sum, gradients, make_dropout_params());
    return;
  }
  for (int64_t i = 0; i < num_consumers_; ++i) sum.addcmul_(compute_gradient(i, {}), masks_[i], 1 / (1 - probability_));
}

at::Tensor segment_dropout(const at::Tensor& x, double probability, uint64_t layer) {
  return SegmentDropoutFunction::apply(
      x, c10::make_intrusive<ValueCapsule<IndependentDropouts>>(IndependentDropouts(x, 1, probability, layer)));
}

}  // namespace vlmtrain::nn
