#include "vlmtrain/nn/layers/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_bilinear2d_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/cross_entropy.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/nn/layers/matmul.h"
#include "vlmtrain/nn/weights/row_alignment.h"

namespace vlmtrain::nn {

namespace {

/// Returns whether the division by the normalizer is deferred to the backward pass. With fp16 it
/// is, because gradients divided by thousands of labels underflow. The backward pass divides in
/// fp32, together with the multiplication by the loss scale.
bool defers_division(const at::Tensor& hidden) {
  return hidden.scalar_type() == at::kHalf;
}

/// The gradient of the output weight, summed over the rows of a chunk, could exceed the largest
/// fp16 number. The hidden states are therefore divided by this number before the product, and the
/// product is multiplied by it in fp32. A power of two, so that the division is exact; not tuned.
constexpr double kFp16GradientDivisor = 64;

/// Computes log softmax of logits fp32 [rows, vocabulary] in place. This is safe because ATen's
/// kernel reads a row entirely before it writes the row.
void log_softmax_in_place(at::Tensor logits) {
  at::_log_softmax_out(logits, logits, /*dim=*/1, /*half_to_float=*/false);
}

/// Returns scores · factors in the dtype of `hidden`; in place if the scores have this dtype.
at::Tensor scale_scores(const at::Tensor& hidden, const at::Tensor& scores, const at::Tensor& factors) {
  if (hidden.scalar_type() == scores.scalar_type()) return scores.mul_(factors);
  at::Tensor result =
      allocate_aligned_rows(scores.size(0), scores.size(1), scores.options().dtype(hidden.scalar_type()));
  return at::mul_out(result, scores, factors);
}

/// The arguments of one chunk of rows.
struct ChunkLossArgs {
  at::Tensor labels;       ///< int64 [rows, 1]
  at::Tensor row_weights;  ///< fp32 [rows, 1], or undefined
  double divisor;          ///< of the gradient
  double logit_soft_cap;   ///< of the OutputProjection
  bool needs_gradient;     ///< of the logits
  bool needs_accuracy;     ///< whether to set ChunkLoss::is_correct
};

/// The results of one chunk of rows.
struct ChunkLoss {
  at::Tensor cross_entropy, is_correct;  ///< fp32 [rows, 1]; is_correct may be undefined if not requested
  /// (softmax − one-hot) · weight / divisor, times the derivative of a soft cap: the gradient of the
  /// loss with respect to the logits in their dtype, rounded once. Undefined unless requested. May
  /// share memory with the logits.
  at::Tensor logits_gradient;
};

ChunkLoss compute_chunk_loss_aten(const at::Tensor& logits, const ChunkLossArgs& args) {
  at::Tensor scores = logits.to(at::kFloat).contiguous();  // log_softmax_in_place() needs dense rows
  at::Tensor tanh;                                         // of logits / cap, saved for the gradient
  if (args.logit_soft_cap > 0) {
    scores.div_(args.logit_soft_cap).tanh_();
    if (args.needs_gradient) {
      tanh = scores;
      scores = tanh * args.logit_soft_cap;
    } else {
      scores.mul_(args.logit_soft_cap);
    }
  }
  log_softmax_in_place(scores);
  ChunkLoss loss;
  loss.cross_entropy = scores.gather(1, args.labels).neg_();
  if (args.needs_accuracy) {
    const at::Tensor min_loss = at::amax(scores, 1, /*keepdim=*/true).neg_();
    loss.is_correct = loss.cross_entropy.eq(min_loss).to(at::kFloat);
  }
  if (!args.needs_gradient) return loss;
  scores.exp_().scatter_add_(1, args.labels, at::full({scores.size(0), 1}, -1.0, scores.options()));
  if (tanh.defined()) at::tanh_backward_out(scores, scores, tanh);
  const at::Tensor factors = args.row_weights.defined() ? args.row_weights / args.divisor
                                                        : at::full({1, 1}, 1.0 / args.divisor, scores.options());
  loss.logits_gradient = scale_scores(logits, scores, factors);
  return loss;
}

ChunkLoss compute_chunk_loss_fused(const at::Tensor& logits, const ChunkLossArgs& args) {
  auto rows = kernels::cross_entropy(logits, args.labels, 1 / args.divisor, args.row_weights, args.needs_gradient,
                                     args.logit_soft_cap);
  return {rows.cross_entropy, rows.is_correct, logits};
}

/// The part of a PerTaskLoss that belongs to one chunk of rows. The PerTaskLoss must outlive the
/// object.
class PerTaskLossChunk {
 public:
  PerTaskLossChunk(const PerTaskLoss& per_task, int64_t first, int64_t rows)
      : per_task_loss_(per_task), task_one_hot_(per_task.task_one_hot.narrow(1, first, rows)) {
    if (per_task.weights.defined()) weights_ = per_task.weights.narrow(0, first, rows).unsqueeze(1);
  }

  /// Returns the weights of the labels, fp32 [rows, 1], or undefined.
  const at::Tensor& weights() const { return weights_; }

  /// Adds the results of the chunk, both fp32 [rows, 1], to the sums. `cross_entropy` is multiplied
  /// by the label weights.
  void add(const at::Tensor& cross_entropy, const at::Tensor& is_correct) const {
    per_task_loss_.sums.add_(matmul_transposed(task_one_hot_, at::cat({cross_entropy, is_correct}, 1).t()));
  }

  /// Adds `gradient` · `hidden` / `divisor`, summed by task, to feature_scale_gradients; both
  /// [rows, features].
  void add_scale_gradients(const at::Tensor& hidden, const at::Tensor& gradient, double divisor) const {
    per_task_loss_.feature_scale_gradients.add_(
        matmul_transposed(task_one_hot_, gradient.to(at::kFloat).mul(hidden).t()), 1.0 / divisor);
  }

 private:
  const PerTaskLoss& per_task_loss_;
  at::Tensor task_one_hot_;  // [tasks, rows]
  at::Tensor weights_;
};

/// Returns the product of two weights of rows. Each of them may be undefined, which means 1.
at::Tensor multiply_weights(const at::Tensor& left, const at::Tensor& right) {
  if (!left.defined() || !right.defined()) return left.defined() ? left : right;
  return left * right;
}

/// Returns hidden · weightᵀ, [rows, vocabulary], in aligned rows.
at::Tensor compute_logits(const at::Tensor& hidden, const at::Tensor& weight) {
  const int64_t vocabulary = weight.size(0);
  if (align_width(vocabulary, hidden.options()) == vocabulary) return matmul_transposed(hidden, weight);
  at::Tensor logits = allocate_aligned_rows(hidden.size(0), vocabulary, hidden.options());
  matmul_transposed_out(logits, hidden, weight);
  return logits;
}

struct LinearCrossEntropyFunction : torch::autograd::Function<LinearCrossEntropyFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, double logit_soft_cap, const at::Tensor& labels,
                            double normalizer, int64_t chunk_rows, const PerTaskLoss* per_task,
                            const at::Tensor* label_weights) {
    const bool needs_scale_gradients = per_task != nullptr && per_task->feature_scale_gradients.defined();
    const bool needs_hidden_gradient = hidden.requires_grad() || needs_scale_gradients;
    const bool needs_weight_gradient = weight.requires_grad();
    const auto fp32 = hidden.options().dtype(at::kFloat).requires_grad(false);
    at::Tensor loss = at::zeros({}, fp32);
    at::Tensor hidden_gradient, weight_gradient;
    const bool is_division_deferred = defers_division(hidden);
    const double divisor = is_division_deferred ? 1.0 : normalizer;
    if (needs_hidden_gradient) hidden_gradient = at::empty_like(hidden);

    for (int64_t first = 0; first < hidden.size(0); first += chunk_rows) {
      const int64_t rows = std::min(chunk_rows, hidden.size(0) - first);
      const at::Tensor chunk = hidden.narrow(0, first, rows);
      const at::Tensor chunk_labels = labels.narrow(0, first, rows).unsqueeze(1);
      std::optional<PerTaskLossChunk> tasks;
      if (per_task != nullptr) tasks.emplace(*per_task, first, rows);
      const at::Tensor chunk_label_weights =
          label_weights->defined() ? label_weights->narrow(0, first, rows).unsqueeze(1) : at::Tensor();
      const ChunkLossArgs args{
          .labels = chunk_labels,
          .row_weights = multiply_weights(chunk_label_weights, tasks ? tasks->weights() : at::Tensor()),
          .divisor = divisor,
          .logit_soft_cap = logit_soft_cap,
          .needs_gradient = needs_hidden_gradient || needs_weight_gradient,
          .needs_accuracy = tasks.has_value()};
      const at::Tensor logits = compute_logits(chunk, weight);
      const auto [cross_entropy, is_correct, logits_gradient] =
          kernels::is_available(kernels::Kernel::kCrossEntropy, logits) ? compute_chunk_loss_fused(logits, args)
                                                                        : compute_chunk_loss_aten(logits, args);
      if (tasks) {
        tasks->add(chunk_label_weights.defined() ? cross_entropy.mul(chunk_label_weights) : cross_entropy, is_correct);
      }
      loss += args.row_weights.defined() ? cross_entropy.mul(args.row_weights).sum() : cross_entropy.sum();
      if (!args.needs_gradient) continue;

      if (needs_hidden_gradient) {
        const at::Tensor chunk_gradient = hidden_gradient.narrow(0, first, rows);
        chunk_gradient.copy_(matmul_transposed(logits_gradient, weight.t()));
        if (needs_scale_gradients)
          tasks->add_scale_gradients(chunk, chunk_gradient, is_division_deferred ? normalizer : 1.0);
      }
      if (!needs_weight_gradient) continue;
      if (!is_division_deferred && add_product_to_gradient_sums({weight}, logits_gradient.t(), chunk.t())) continue;
      if (!weight_gradient.defined()) weight_gradient = at::zeros(weight.sizes(), fp32);
      if (is_division_deferred) {
        weight_gradient.add_(matmul_transposed(logits_gradient.t(), (chunk / kFp16GradientDivisor).t()),
                             kFp16GradientDivisor);
      } else {
        weight_gradient += matmul_transposed(logits_gradient.t(), chunk.t());
      }
    }
    if (weight_gradient.defined() && !is_division_deferred) weight_gradient = weight_gradient.to(weight.scalar_type());
    if (!hidden.requires_grad()) hidden_gradient.reset();
    context->saved_data["late_divisor"] = is_division_deferred ? normalizer : 0.0;
    context->saved_data["hidden_gradient"] = hidden_gradient;
    context->saved_data["weight_gradient"] = weight_gradient;
    context->saved_data["added_to_sum"] = needs_weight_gradient && !weight_gradient.defined();
    return loss.div_(normalizer);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    // The incoming gradient is the loss scale. It stays on the device, to avoid a synchronization.
    const double deferred_divisor = context->saved_data["late_divisor"].toDouble();
    const at::Tensor factor = deferred_divisor > 0 ? gradients[0] / deferred_divisor : gradients[0];
    VLMTRAIN_CHECK(!context->saved_data["added_to_sum"].toBool() || !factor.is_cpu() || factor.item<float>() == 1,
                   "the gradient of the output projection is in its sum already, without a factor of the loss");
    // Works in place, so the saved gradients are erased and a second backward pass fails.
    const auto scale_saved_gradient = [&](const char* name) {
      at::Tensor gradient = context->saved_data[name].toTensor();
      context->saved_data.erase(name);
      if (!gradient.defined()) return gradient;
      // Multiplied by a 16-bit tensor, the factor would be 16-bit too, and the loss scale may
      // exceed the range of fp16.
      if (deferred_divisor > 0) return gradient.to(at::kFloat).mul_(factor).to(at::kHalf);
      return gradient.mul_(factor);
    };
    return {scale_saved_gradient("hidden_gradient"), scale_saved_gradient("weight_gradient"), {}, {}, {}, {}, {}, {}};
  }
};

at::Tensor compute_linear_cross_entropy(const at::Tensor& hidden, const OutputProjection& projection,
                                        const at::Tensor& labels, double normalizer, int64_t chunk_rows,
                                        const PerTaskLoss* per_task, const at::Tensor& label_weights) {
  VLMTRAIN_CHECK(hidden.size(0) > 0 && hidden.size(0) == labels.size(0),
                 "linear_cross_entropy: got {} hidden states for {} labels", hidden.size(0), labels.size(0));
  VLMTRAIN_CHECK(per_task == nullptr || per_task->task_one_hot.size(1) == labels.size(0),
                 "expected task_one_hot for {1} labels, got {0}", per_task->task_one_hot.size(1), labels.size(0));
  VLMTRAIN_CHECK(!label_weights.defined() || label_weights.numel() == labels.numel(),
                 "linear_cross_entropy: got {} weights for {} labels", label_weights.numel(), labels.numel());
  return LinearCrossEntropyFunction::apply(hidden, projection.weight, projection.logit_soft_cap, labels, normalizer,
                                           chunk_rows, per_task, &label_weights);
}

constexpr double kDiceSmoothing = 1e-5;  // MONAI's smooth_nr and smooth_dr

/// Bilinear resizing of one mask that computes only the first rows and columns of the result.
class MaskResizer {
 public:
  MaskResizer(at::IntArrayRef from, at::IntArrayRef to)
      : height_(from[1]), width_(from[2]), rows_scale_(scale(to[1], height_)), columns_scale_(scale(to[2], width_)) {}

  /// Resizes [height, width] to `size`.
  at::Tensor operator()(const at::Tensor& logits, const std::array<int64_t, 2>& size) const {
    return at::upsample_bilinear2d(logits.view({1, 1, height_, width_}), size, /*align_corners=*/false, rows_scale_,
                                   columns_scale_)
        .view(size);
  }

  /// Returns the gradient for [height, width], given that for `size`.
  at::Tensor backward(const at::Tensor& gradient, const std::array<int64_t, 2>& size) const {
    return at::upsample_bilinear2d_backward(gradient.view({1, 1, size[0], size[1]}), size, {1, 1, height_, width_},
                                            /*align_corners=*/false, rows_scale_, columns_scale_)
        .view({height_, width_});
  }

 private:
  static double scale(int64_t to, int64_t from) { return static_cast<double>(to) / static_cast<double>(from); }

  int64_t height_, width_;
  double rows_scale_, columns_scale_;
};

/// The arguments of mask_loss() and the tensor that receives its sums.
struct MaskLossArgs {
  at::Tensor targets;
  const std::vector<std::array<int64_t, 2>>& sizes;
  double bce_weight, dice_weight;
  double pixels, masks;
  at::Tensor sums;  // MaskLoss::sums
};

/// Adds the losses of one mask to the sums; `logits` and `targets` fp32 [rows, columns]. Returns
/// the gradient of the loss with respect to the logits; undefined unless requested.
at::Tensor add_mask_loss(const at::Tensor& logits, const at::Tensor& targets, const MaskLossArgs& args,
                         bool needs_gradient) {
  const at::Tensor binary_cross_entropy =
      at::binary_cross_entropy_with_logits(logits, targets, /*weight=*/{}, /*pos_weight=*/{}, at::Reduction::Sum);
  at::Tensor probabilities = logits.sigmoid();
  const at::Tensor overlap = (probabilities * targets).sum().mul_(2).add_(kDiceSmoothing);
  const at::Tensor total = (probabilities.sum() + targets.sum()).add_(kDiceSmoothing);
  const at::Tensor dice = overlap / total;
  args.sums.select(0, 0).add_(binary_cross_entropy, 1.0 / args.pixels);
  args.sums.select(0, 1).add_(1.0 - dice, 1.0 / args.masks);
  if (!needs_gradient) return {};

  // The gradient of the Dice loss with respect to the probabilities p is (ratio − 2 g) / total; the
  // gradient of p with respect to the logits is p (1 − p).
  at::Tensor gradient = (dice - targets * 2).mul_(args.dice_weight / args.masks / total);
  gradient.mul_(probabilities).mul_(1.0 - probabilities);
  return gradient.add_(probabilities.sub_(targets), args.bce_weight / args.pixels);
}

struct MaskLossFunction : torch::autograd::Function<MaskLossFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& logits,
                            const MaskLossArgs* args) {
    const bool needs_gradient = logits.requires_grad();
    const at::Tensor gradients = needs_gradient ? at::empty_like(logits, at::MemoryFormat::Contiguous) : at::Tensor();
    const MaskResizer resizer(logits.sizes(), args->targets.sizes());
    for (int64_t i = 0; i < logits.size(0); ++i) {
      const auto& size = args->sizes[static_cast<size_t>(i)];
      const at::Tensor targets = args->targets[i].narrow(0, 0, size[0]).narrow(1, 0, size[1]).to(at::kFloat);
      const at::Tensor gradient =
          add_mask_loss(resizer(logits[i].contiguous(), size), targets.contiguous(), *args, needs_gradient);
      if (needs_gradient) gradients[i].copy_(resizer.backward(gradient, size));
    }
    context->saved_data["gradients"] = gradients;
    return args->sums[0] * args->bce_weight + args->sums[1] * args->dice_weight;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    // The incoming gradient is the loss scale. It stays on the device, to avoid a synchronization.
    at::Tensor gradient = context->saved_data["gradients"].toTensor();
    context->saved_data.erase("gradients");
    return {gradient.mul_(gradients[0]), {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const OutputProjection& projection, const at::Tensor& labels,
                                double normalizer, int64_t chunk_rows, const at::Tensor& label_weights) {
  return compute_linear_cross_entropy(hidden, projection, labels, normalizer, chunk_rows, nullptr, label_weights);
}

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const OutputProjection& projection, const at::Tensor& labels,
                                double normalizer, int64_t chunk_rows, const PerTaskLoss& per_task,
                                const at::Tensor& label_weights) {
  return compute_linear_cross_entropy(hidden, projection, labels, normalizer, chunk_rows, &per_task, label_weights);
}

MaskLoss mask_loss(const at::Tensor& logits, const at::Tensor& targets,
                   const std::vector<std::array<int64_t, 2>>& sizes, double bce_weight, double dice_weight,
                   double pixels, double masks) {
  VLMTRAIN_CHECK(logits.dim() == 3 && targets.dim() == 3 && logits.size(0) == targets.size(0) &&
                     logits.size(0) == std::ssize(sizes),
                 "mask_loss: the numbers of masks ({}), targets ({}) and sizes ({}) differ", logits.size(0),
                 targets.size(0), sizes.size());
  for (const auto& [rows, columns] : sizes) {
    VLMTRAIN_CHECK(rows > 0 && rows <= targets.size(1) && columns > 0 && columns <= targets.size(2),
                   "a mask of {}×{} does not fit in a target of {}×{}", rows, columns, targets.size(1),
                   targets.size(2));
  }
  const MaskLossArgs args{
      .targets = targets,
      .sizes = sizes,
      .bce_weight = bce_weight,
      .dice_weight = dice_weight,
      .pixels = pixels,
      .masks = masks,
      .sums = at::zeros({2}, at::TensorOptions(at::kFloat).device(logits.device())),
  };
  return {.loss = MaskLossFunction::apply(logits, &args), .sums = args.sums};
}

}  // namespace vlmtrain::nn
