#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace vlmtrain::nn {

// fp32 values in two halves: bf16 values and low bits, as in kernels/split_master.h, by ATen's
// operations. All tensors are dense and have the same number of elements and the same device: fp32
// tensors, `values` bf16, `low_bits` int16, and `scratch` int32, which is overwritten. The functions
// allocate nothing.

/// Writes the fp32 values into `out`.
void join_values_out(const at::Tensor& out, const at::Tensor& values, const at::Tensor& low_bits,
                     const at::Tensor& scratch);

/// Splits `from` into `values` and `low_bits`. Overwrites `from`.
void split_values(const at::Tensor& from, const at::Tensor& values, const at::Tensor& low_bits,
                  const at::Tensor& scratch);

/// Rounds `from` stochastically to `values`: away from zero with a probability equal to the fraction
/// that bf16 lacks, so numbers of bf16 do not change. Overwrites `from`.
void round_values_stochastically(const at::Tensor& from, const at::Tensor& values, const at::Tensor& scratch,
                                 const at::Generator& generator);

/// A tensor that is stored as it is, or an fp32 tensor in two halves, which may be on different devices.
struct StoredTensor {
  at::Tensor values;      ///< the tensor, or its bf16 half
  at::Tensor low_bits{};  ///< the other half; undefined if the tensor is stored as it is

  at::ScalarType dtype() const { return low_bits.defined() ? at::kFloat : values.scalar_type(); }
  /// Returns the tensor: `values`, not a copy, or a new tensor that joins both halves, on the device of
  /// `low_bits`.
  at::Tensor read() const;
  /// Returns read() in host memory. Halves are joined there, so that the device needs no memory.
  at::Tensor read_on_host() const;
  /// Writes `tensor`, of dtype() and any device.
  void write(const at::Tensor& tensor) const;
};

}  // namespace vlmtrain::nn
