#include "engine/optimizer/muon.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <memory>

namespace vlmtrain::engine {

namespace {

constexpr const char* kMomentum = "momentum";

/// The memory of an update.
struct MuonScratch final : UpdateScratch {
  MuonScratch(int64_t max_elements, int64_t max_rank, const at::TensorOptions& options)
      : newton_schulz(max_elements, max_rank, options),
        decay_factor(at::empty({}, options.dtype(at::kFloat))),
        one(at::ones({}, options.dtype(at::kFloat))) {}

  NewtonSchulzBuffers newton_schulz;
  at::Tensor decay_factor;  // fp32 scalar that multiplies the weights of a group
  at::Tensor one;           // fp32 scalar
};

class Muon final : public UpdateRule {
 public:
  explicit Muon(const OptimizerSettings& settings) : settings_(settings.muon) {}

  std::vector<std::string> moment_names() const override { return {kMomentum}; }
  bool needs_bool_skip_flag() const override { return true; }

  std::unique_ptr<UpdateScratch> allocate_scratch(const std::vector<const UpdateGroup*>& groups) const override {
    int64_t max_elements = 0, max_rank = 0;
    for (const auto* const group : groups) {
      for (const auto& tensor : group->tensors) {
        max_elements = std::max(max_elements, tensor.master.numel());
        max_rank = std::max(max_rank, std::min(tensor.master.size(0), tensor.master.size(1)));
      }
    }
    if (groups.empty()) return nullptr;
    return std::make_unique<MuonScratch>(max_elements, max_rank, groups.front()->tensors.front().master.options());
  }

  void apply(const UpdateGroup& group, const UpdateInputs& inputs) const override {
    const auto& scratch = static_cast<const MuonScratch&>(*inputs.scratch);
    at::Tensor decay_factor = scratch.decay_factor;
    decay_factor.fill_(1 - inputs.learning_rate * group.hyperparameters.weight_decay);
    at::where_out(decay_factor, inputs.skipped_bool, scratch.one, decay_factor);
    for (const auto& tensor : group.tensors) {
      replace_gradient_by_update(tensor, inputs, scratch.newton_schulz);
      at::Tensor master = tensor.master;
      master.mul_(decay_factor);
      master.add_(tensor.gradient, -inputs.learning_rate * compute_lr_ratio(master));
    }
  }

 private:
  /// Updates the momentum, and overwrites the gradient with the orthogonalized update; with zeros if
  /// the step is skipped.
  void replace_gradient_by_update(const UpdateTensor& tensor, const UpdateInputs& inputs,
                                  const NewtonSchulzBuffers& buffers) const {
    at::Tensor gradient = tensor.gradient, momentum = tensor.moments.front();
    if (inputs.gradient_divisor.defined()) gradient.div_(inputs.gradient_divisor);
    // In a skipped step the gradient may not be finite. The momentum is its own average with itself.
    at::where_out(gradient, inputs.skipped_bool, momentum, gradient);
    momentum.lerp_(gradient, 1 - settings_.momentum);
    gradient.lerp_(momentum, settings_.momentum);
    // A sum of fp32 and bf16 on the CPU would allocate a tensor.
    gradient.copy_(orthogonalize(gradient, settings_.ns_steps, buffers)).masked_fill_(inputs.skipped_bool, 0);
  }

  /// Returns the factor of the learning rate for a matrix.
  double compute_lr_ratio(const at::Tensor& matrix) const {
    constexpr double kAdamWRms = 0.2;  // typical root mean square of AdamW's updates (Liu et al. 2025)
    const auto rows = static_cast<double>(matrix.size(0)), columns = static_cast<double>(matrix.size(1));
    return settings_.lr_adjustment == MuonLrAdjustment::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                                                  : kAdamWRms * std::sqrt(std::max(rows, columns));
  }

  MuonSettings settings_;
};

}  // namespace

const UpdateRuleEntry kMuonRule{.kind = OptimizerKind::kMuon,
                                .first_moment_name = kMomentum,
                                .can_update =
                                    [](const nn::Parameter& parameter) {
                                      return parameter.tensor.dim() == 2 &&
                                             (parameter.is_linear_weight || parameter.is_adapter);
                                    },
                                .make = [](const OptimizerSettings& settings) -> std::unique_ptr<UpdateRule> {
                                  return std::make_unique<Muon>(settings);
                                }};

namespace {

// Coefficients of the polynomial a x + b x³ + c x⁵ of Jordan et al., chosen for a large slope at 0.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
/// Smallest norm that divides a matrix, as in torch.optim.Muon.
constexpr double kMinNorm = 1e-7;

/// Returns the beginning of a flat buffer as a matrix.
at::Tensor view_as_matrix(const at::Tensor& buffer, int64_t rows, int64_t columns) {
  return buffer.narrow(0, 0, rows * columns).view({rows, columns});
}

}  // namespace

NewtonSchulzBuffers::NewtonSchulzBuffers(int64_t max_elements, int64_t max_rank, const at::TensorOptions& options) {
  const auto bf16_options = options.dtype(at::kBFloat16);
  for (auto& matrix : matrices) matrix = at::empty({max_elements}, bf16_options);
  for (auto& gram : grams) gram = at::empty({max_rank * max_rank}, bf16_options);
  norm = at::empty({}, bf16_options);
}

at::Tensor orthogonalize(const at::Tensor& matrix, int64_t num_steps, const NewtonSchulzBuffers& buffers) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const int64_t rank = std::min(rows, columns), length = std::max(rows, columns);
  const bool is_tall = rows > columns;
  const at::Tensor rounded = view_as_matrix(buffers.matrices[0], rows, columns).copy_(matrix);
  // x is [rank, length]: the Gram matrix x xᵀ is the smaller one.
  at::Tensor x = is_tall ? rounded.t() : rounded;
  at::Tensor norm = buffers.norm, gram = view_as_matrix(buffers.grams[0], rank, rank),
             polynomial = view_as_matrix(buffers.grams[1], rank, rank);
  x.div_(at::linalg_vector_norm_out(norm, x, 2).clamp_min_(kMinNorm));
  for (int64_t step = 0; step < num_steps; ++step) {
    at::Tensor next = view_as_matrix(buffers.matrices[(step + 1) % 2], rank, length);
    at::mm_out(gram, x, x.t());
    at::addmm_out(polynomial, gram, gram, gram, /*beta=*/kB, /*alpha=*/kC);
    at::addmm_out(next, x, polynomial, x, /*beta=*/kA);
    x = next;
  }
  return is_tall ? x.t() : x;
}

}  // namespace vlmtrain::engine
