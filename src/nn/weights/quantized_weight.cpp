#include "vlmtrain/nn/weights/quantized_weight.h"

#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "nn/weights/nf4.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/dequantize.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::nn {

namespace {

/// Returns at::linspace computed with fused multiply-add. ATen's own result depends on the
/// processor, and the tables of bitsandbytes match the fused form.
at::Tensor linspace_fma(float first, float last, int64_t count) {
  const float step = (last - first) / static_cast<float>(count - 1);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(i < count / 2 ? std::fma(step, static_cast<float>(i), first)
                                   : std::fma(-step, static_cast<float>(count - 1 - i), last));
  }
  return at::tensor(values);
}

/// The largest absolute value of an int8 code; −128 is not used, as in bitsandbytes.
constexpr double kMaxInt8Code = 127;
/// 1 / 127 with the digits of bitsandbytes (functional.py, int8_vectorwise_dequant).
constexpr double kInt8DequantizeScale = 7.874015718698502e-3;
/// Maximum values per chunk of whole rows: half of an MLP weight of a 7B model (4096 · 11008 / 2),
/// whose fp32 copy takes 90 MB. Smaller chunks need more launches, larger ones more memory.
constexpr int64_t kMaxInt8ChunkElements = 22'544'384;

/// Returns the first row and the number of rows of each chunk of a matrix.
std::vector<std::pair<int64_t, int64_t>> split_into_row_chunks(at::IntArrayRef sizes) {
  const int64_t max_chunk_rows = std::max<int64_t>(1, kMaxInt8ChunkElements / sizes[1]);
  std::vector<std::pair<int64_t, int64_t>> chunks;
  for (int64_t first = 0; first < sizes[0]; first += max_chunk_rows) {
    chunks.emplace_back(first, std::min(max_chunk_rows, sizes[0] - first));
  }
  return chunks;
}

/// A weight in Quantization::kInt8.
class Int8Weight : public QuantizedWeight {
 public:
  Int8Weight(at::IntArrayRef sizes, const at::TensorOptions& options);

  /// Rounds to fp16 first, as bitsandbytes' Int8Params does.
  void quantize(const at::Tensor& weight) override;
  at::Tensor dequantize() const override;
  bool has_dequantize_kernel() const override {
    return kernels::is_available(kernels::Kernel::kInt8, values_) && dtype_ != at::kDouble;
  }
  void write_dequantized(const at::Tensor& result) const override;
  std::vector<std::pair<std::string, at::Tensor>> state() const override;
  std::vector<at::Tensor> tensors() const override;

 private:
  at::ScalarType dtype_;
  at::Tensor values_;      // int8 [out, in]
  at::Tensor row_absmax_;  // fp32 [out]
};

Int8Weight::Int8Weight(at::IntArrayRef sizes, const at::TensorOptions& options)
    : QuantizedWeight(sizes),
      dtype_(options.dtype().toScalarType()),
      values_(at::empty(sizes, options.dtype(at::kChar))),
      row_absmax_(at::empty({sizes[0]}, options.dtype(at::kFloat))) {}

void Int8Weight::quantize(const at::Tensor& weight) {
  const at::NoGradGuard no_gradients;
  const at::Tensor values = weight.detach().to(at::kCPU);
  for (const auto& [first, count] : split_into_row_chunks(sizes())) {
    const at::Tensor rows = values.narrow(0, first, count).to(at::kHalf).to(at::kFloat);
    const at::Tensor absmax = at::amax(rows.abs(), {1});
    // Rounds twice, as Python's 127.0 / absmax does. Rows of zeros are divided by 1.
    const at::Tensor scale = absmax.masked_fill(absmax == 0, 1).reciprocal_().mul_(kMaxInt8Code);
    values_.narrow(0, first, count).copy_((rows * scale.unsqueeze(1)).round_());
    row_absmax_.narrow(0, first, count).copy_(absmax);
  }
}

at::Tensor Int8Weight::dequantize() const {
  at::Tensor result = at::empty(sizes(), values_.options().dtype(dtype_));
  write_dequantized(result);
  return result;
}

void Int8Weight::write_dequantized(const at::Tensor& result) const {
  const at::NoGradGuard no_gradients;
  if (has_dequantize_kernel()) {
    kernels::int8_dequantize(result, values_, row_absmax_, kInt8DequantizeScale);
    return;
  }
  const at::Tensor step = c10::scalar_to_tensor(kInt8DequantizeScale);
  for (const auto& [first, count] : split_into_row_chunks(sizes())) {
    const at::Tensor scaled_values = values_.narrow(0, first, count) * row_absmax_.narrow(0, first, count).unsqueeze(1);
    at::Tensor chunk = result.narrow(0, first, count).narrow(1, 0, sizes()[1]);
    at::mul_out(chunk, scaled_values, step);
  }
  result.narrow(1, sizes()[1], result.size(1) - sizes()[1]).zero_();
}

std::vector<std::pair<std::string, at::Tensor>> Int8Weight::state() const {
  return {{"weight", values_}, {"SCB", row_absmax_}};
}

std::vector<at::Tensor> Int8Weight::tensors() const {
  return {values_, row_absmax_};
}

}  // namespace

at::Tensor compute_midpoints(const at::Tensor& ascending) {
  const int64_t num_midpoints = ascending.size(0) - 1;
  return (ascending.narrow(0, 0, num_midpoints) + ascending.narrow(0, 1, num_midpoints)) / 2;
}

at::Tensor make_nf4_codebook() {
  return at::tensor({-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F, -0.28444138169288635F,
                     -0.18477343022823334F, -0.09105003625154495F, 0.0F, 0.07958029955625534F, 0.16093020141124725F,
                     0.24611230194568634F, 0.33791524171829224F, 0.44070982933044434F, 0.5626170039176941F,
                     0.7229568362236023F, 1.0F});
}

at::Tensor make_dynamic_codebook(Signedness signedness) {
  // Number of decades that the codebook covers, 1e-7 to 1, as in bitsandbytes.
  constexpr int kNumDecades = 7;
  std::vector<at::Tensor> parts{at::tensor({0.0F, 1.0F})};
  for (int i = 0; i < kNumDecades; ++i) {
    const int64_t count = signedness == Signedness::kSigned ? int64_t{1} << i : int64_t{2} << i;
    const at::Tensor fractions = compute_midpoints(linspace_fma(0.1F, 1.0F, count + 1));
    const at::Tensor positive_values = std::pow(10.0, i - (kNumDecades - 1)) * fractions;
    parts.push_back(positive_values);
    if (signedness == Signedness::kSigned) parts.push_back(-positive_values);
  }
  return std::get<0>(at::cat(parts).sort());
}

QuantizedBlocks quantize_blocks(const at::Tensor& values, int64_t block_size, const at::Tensor& codebook) {
  constexpr double kMinAbsmax = 1e-38;  // avoids 0 / 0 in blocks of zeros; positive in fp32
  const at::Tensor bounds = compute_midpoints(codebook);
  const int64_t num_full_block_values = values.size(0) / block_size * block_size;
  const at::Tensor blocks =
      values.narrow(0, 0, num_full_block_values).view({num_full_block_values / block_size, block_size});
  at::Tensor absmax = at::amax(blocks.abs(), {1});
  at::Tensor scaled_values = (blocks * (1.0 / absmax.clamp_min(kMinAbsmax)).unsqueeze(1)).view(-1);
  if (num_full_block_values < values.size(0)) {
    const at::Tensor tail_values = values.narrow(0, num_full_block_values, values.size(0) - num_full_block_values);
    const at::Tensor largest = at::amax(tail_values.abs(), {0}, /*keepdim=*/true).clamp_min(kMinAbsmax);
    absmax = at::cat({absmax, largest});
    scaled_values = at::cat({scaled_values, tail_values / largest});
  }
  return {at::bucketize(scaled_values.clamp_(-1, 1), bounds, /*out_int32=*/true).to(at::kByte), absmax};
}

Quantizer::Quantizer(Quantization quantization, const at::TensorOptions& options)
    : quantization_(quantization), options_(options) {
  if (quantization_ != Quantization::kNf4) return;
  const Nf4Tables tables = make_nf4_tables(options.device());
  nf4_value_table_ = tables.values;
  nf4_absmax_table_ = tables.absmax;
}

std::shared_ptr<QuantizedWeight> Quantizer::make_weight(at::IntArrayRef sizes) const {
  return make_weight_group({sizes[0]}, sizes[1]).front();
}

std::vector<std::shared_ptr<QuantizedWeight>> Quantizer::make_weight_group(const std::vector<int64_t>& out_features,
                                                                           int64_t in_features) const {
  std::vector<std::shared_ptr<QuantizedWeight>> weights;
  switch (quantization_) {
    case Quantization::kNf4:
      for (auto& weight :
           make_nf4_weights(out_features, in_features, options_, {nf4_value_table_, nf4_absmax_table_})) {
        weights.push_back(std::move(weight));
      }
      return weights;
    case Quantization::kInt8:
      for (const int64_t out : out_features) {
        weights.push_back(std::make_shared<Int8Weight>(at::IntArrayRef{out, in_features}, options_));
      }
      return weights;
    case Quantization::kNone:
      break;
  }
  throw InternalError("Quantizer requires a quantization");
}

namespace {

/// Returns the weights if all are in NF4, else an empty vector.
std::vector<const Nf4Weight*> find_nf4_weights(const std::vector<std::shared_ptr<const QuantizedWeight>>& weights) {
  std::vector<const Nf4Weight*> all;
  for (const auto& weight : weights) {
    const auto* const nf4_weight = dynamic_cast<const Nf4Weight*>(weight.get());
    if (nf4_weight == nullptr) return {};
    all.push_back(nf4_weight);
  }
  return all;
}

}  // namespace

std::vector<at::Tensor> dequantize_group(const std::vector<std::shared_ptr<const QuantizedWeight>>& weights) {
  const auto nf4_weights = find_nf4_weights(weights);
  return nf4_weights.empty() ? std::vector<at::Tensor>() : Nf4Weight::dequantize_group(nf4_weights);
}

void write_dequantized_group(const std::vector<std::shared_ptr<const QuantizedWeight>>& weights,
                             const std::vector<at::Tensor>& results) {
  const auto nf4_weights = find_nf4_weights(weights);
  if (!nf4_weights.empty() && Nf4Weight::write_dequantized_group(nf4_weights, results)) return;
  for (size_t i = 0; i < weights.size(); ++i) weights[i]->write_dequantized(results[i]);
}

}  // namespace vlmtrain::nn
