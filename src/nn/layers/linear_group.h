#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "nn/layers/bordered_weights.h"
#include "vlmtrain/nn/layers/dropout.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/weights/quantized_weight.h"

namespace vlmtrain::nn {

/// The weights, biases and adapters of Linears. Immutable.
struct LinearGroup {
  /// One Linear of the group.
  struct Member {
    LinearWeight weight;
    at::Tensor bias;  // [columns]; undefined without biases
    std::optional<LoraAdapter> adapter;
    int64_t first_column, columns;  // columns of the result that belong to it, without padding

    /// Returns whether the weight needs a gradient.
    bool trains_weight() const { return !weight.is_quantized() && weight.values().requires_grad(); }
    /// Returns whether the bias needs a gradient.
    bool trains_bias() const { return bias.defined() && bias.requires_grad(); }
    /// Returns the member's columns of a result or gradient: a view [rows, columns] of [rows, out].
    at::Tensor slice_columns(const at::Tensor& rows) const { return rows.narrow(1, first_column, columns); }
  };

  std::vector<Member> members;
  at::TensorOptions options;     // device and dtype of the result
  int64_t in_features;           // columns of the weights
  int64_t column_alignment = 1;  // first_column of each member and columns() are multiples of it
  OutputColumns output_columns = OutputColumns::kDense;
  std::optional<BorderedWeights> bordered_weights = {};  // holds the members' parameters; see find_border()

  /// Returns the number of columns of the result of all members, with padding.
  int64_t columns() const;
  /// Returns whether columns of the result belong to no member.
  bool has_padding_columns() const;
  /// Writes zeros to the columns of `rows` [rows, columns()] that belong to no member.
  void zero_padding_columns(const at::Tensor& rows) const;
  /// Returns whether the members have biases: all of them or none.
  bool has_bias() const { return members.front().bias.defined(); }
  /// Returns the biases of all members as one view [columns()], without gradients; undefined if there
  /// are none or they are not adjacent.
  at::Tensor make_merged_bias() const;
  /// Returns whether any adapter uses DoRA.
  bool has_dora() const;
  /// Returns the adapters of the members that have one, in order.
  std::vector<const LoraAdapter*> adapters() const;
  /// Returns the storage of the adapters as two matrices; null if each has storage of its own.
  const BorderedWeights* find_border() const;
};

/// Implements MergedLinear::operator() for a group without DoRA.
at::Tensor apply_linear_group(const std::shared_ptr<const LinearGroup>& group, const LinearInput& x,
                              const at::Tensor& residual);

/// Implements MergedLinear::forward_branch() for a group without DoRA and an input with a prologue
/// whose first input needs a gradient.
ResidualBranch apply_linear_branch(const std::shared_ptr<const LinearGroup>& group, const LinearInput& x);

/// The matrix next to the weights of a group; see BorderedWeights.
enum class WeightBorder : uint8_t {
  kNone,
  kB,  ///< columns after those of the weights
  kA,  ///< rows after those of the weights
};

/// The tensors that autograd saves for the backward pass of a LinearGroup. The autograd node frees
/// them after its backward pass.
struct LinearSavedState {
  std::vector<at::Tensor> inputs;       // of the LinearInput
  std::vector<at::Tensor> statistics;   // of the prologue
  std::vector<at::Tensor> lora_hidden;  // scale · dropout(x) Aᵀ of each adapter, [rows, rank]
  IndependentDropouts dropout;          // dropout of the adapters' inputs; inactive without dropout
  int64_t input_columns = 0;            // of the LinearInput's value, without a border

  /// Moves the tensors into `context`. May be called once.
  void save(torch::autograd::AutogradContext* context);

  /// Returns the tensors saved in `context`.
  static LinearSavedState load(torch::autograd::AutogradContext* context);
};

/// The projections of a group's adapters, [rows, rank] each, as columns of one matrix. Each begins at
/// an aligned column (align_width()), so the matrix may have more columns than the sum of the ranks.
/// BorderedWeights places them in the same way.
struct LoraProjections {
  /// Places projections in `matrix`; in a new, uninitialized one if it is undefined.
  LoraProjections(const std::vector<const LoraAdapter*>& adapters, int64_t rows, const at::TensorOptions& options,
                  at::Tensor matrix = {});
  LoraProjections() = default;

  at::Tensor merged;                   // all columns
  std::vector<at::Tensor> by_adapter;  // views of `merged`
  bool has_padding_columns = false;    // whether columns of `merged` belong to no adapter
};

/// Returns the matrix that multiplies LoraProjections::merged, without gradients: the A of all adapters,
/// [columns of the projections, columns], zero in the columns beyond its own; undefined if the adapters
/// must be applied one by one. `border`: of the group; may be null.
at::Tensor make_projections_a(const BorderedWeights* border, const std::vector<const LoraAdapter*>& adapters,
                              const LoraProjections& projections, int64_t columns);

/// Returns the A of all adapters as one matrix [sum of ranks, columns], zero in the columns beyond
/// its own; undefined unless they are adjacent in memory.
at::Tensor make_merged_lora_a(const std::vector<const LoraAdapter*>& adapters, int64_t columns);

/// Returns A of an adapter with zeros up to `columns` columns, without gradients: A itself, or a
/// copy.
at::Tensor make_padded_lora_a(const LoraAdapter& adapter, int64_t columns);

/// Returns B [out, rank] of an adapter, without gradients, in rows that are aligned (align_width()):
/// B itself, or a copy.
at::Tensor make_aligned_lora_b(const LoraAdapter& adapter);

/// The backward pass of one call of a LinearGroup. The group and the prologue must outlive the
/// object.
class LinearBackward {
 public:
  /// Recomputes the prologue's value if a gradient needs it. `prologue`: null if the input is a
  /// plain tensor. `gradient` [rows, out]: gradient of the result. `needs_grad[i]`: whether input i
  /// needs a gradient.
  LinearBackward(const LinearGroup& group, const FusedPrologue* prologue, LinearSavedState saved,
                 const at::Tensor& gradient, std::vector<bool> needs_grad);

  /// Returns the gradients of the inputs, the residual and the trained tensors, in the order of the
  /// forward call. An entry is undefined if it is not needed or was added to a GradientSink. Adds
  /// `residual_stream_gradient`, if defined, to the gradient of the first input. May be called
  /// once: it releases the prologue's value.
  std::vector<at::Tensor> compute_gradients(bool has_residual, const at::Tensor& residual_stream_gradient);

 private:
  /// Returns whether a trained weight or an adapter's A needs the value of the LinearInput.
  bool needs_input_value() const;

  /// Sets gradient_projections_ to scale · gradient · B of each adapter, [rows, rank].
  void compute_projected_gradients();

  /// Returns the gradients of the trained tensors of all members: weight, bias, A, B.
  std::vector<at::Tensor> compute_parameter_gradients() const;

  /// Returns a · bᵀ, whose consecutive rows are the gradients of `parameters`. If the product was
  /// added to their gradient sinks, returns an undefined tensor.
  static at::Tensor accumulate_or_return_gradient(const std::vector<at::Tensor>& parameters, const at::Tensor& a,
                                                  const at::Tensor& b);

  /// Returns one gradient per member; undefined if not trained or added to a sink.
  std::vector<at::Tensor> compute_weight_gradients() const;

  /// Returns the gradient of A per adapter; undefined if added to a sink. Returns an empty vector
  /// if no A is trained.
  std::vector<at::Tensor> compute_lora_a_gradients() const;

  /// Returns one gradient per input of the LinearInput; undefined if not needed.
  std::vector<at::Tensor> compute_input_gradients(const at::Tensor& residual_stream_gradient) const;

  /// Returns gradient · W, [rows, in]; with WeightBorder::kA plus scale · gradient · B A. Dequantized
  /// weights are freed on return.
  at::Tensor multiply_gradient_by_weight(WeightBorder border) const;

  /// Returns whether the rows of the gradient have a border for scale · gradient · B, which the product
  /// with the weights then includes.
  bool can_use_gradient_border() const;

  /// Returns the gradient of the LinearInput's value, [rows, in], adapters included.
  at::Tensor compute_input_value_gradient() const;

  const LinearGroup& linear_group_;
  const FusedPrologue* prologue_;
  LinearSavedState saved_state_;
  at::Tensor gradient_;           // [rows, out], whose rows may have a border
  std::vector<bool> needs_grad_;  // per input
  std::vector<const LoraAdapter*> adapters_;
  const BorderedWeights* border_;  // of the group; may be null
  bool has_gradient_border_;       // can_use_gradient_border()
  FusedPrologue::Output prologue_output_;
  LoraProjections gradient_projections_;  // scale · gradient · B of each adapter
};

}  // namespace vlmtrain::nn
