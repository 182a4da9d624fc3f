#include "nn/attention_kernel.h"

#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <tuple>
#include <utility>

#include "nn/attention_scale.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::nn {

namespace {

constexpr double kNoDropout = 0;

class CudaFlash : public AttentionKernel {
 public:
  explicit CudaFlash(StreamOfSegments stream) : stream_(std::move(stream)) {
    if (!stream_.window) return;
    rows_before_ = *stream_.window - 1;
    rows_after_ = 0;
  }

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, log_sums, random_state, unused, mask] = at::_flash_attention_forward(
        query, key, value, stream_.offsets, stream_.offsets, stream_.max_length, stream_.max_length, kNoDropout,
        stream_.causal, /*return_debug_mask=*/false, attention_scale(query), rows_before_, rows_after_);
    return {output, log_sums, random_state, unused};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& made) const override {
    auto [of_query, of_key, of_value] =
        at::_flash_attention_backward(gradient, query, key, value, made[0], made[1], stream_.offsets, stream_.offsets,
                                      stream_.max_length, stream_.max_length, kNoDropout, stream_.causal, made[2],
                                      made[3], attention_scale(query), rows_before_, rows_after_);
    return {of_query, of_key, of_value};
  }

 private:
  StreamOfSegments stream_;
  std::optional<int64_t> rows_before_, rows_after_;
};

class CudaMemoryEfficient : public AttentionKernel {
 public:
  explicit CudaMemoryEfficient(StreamOfSegments stream) : stream_(std::move(stream)) {}

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, log_sums, seed, offset, rows, keys] = at::_efficient_attention_forward(
        query, key, value, /*bias=*/{}, stream_.offsets, stream_.offsets, stream_.max_length, stream_.max_length,
        kNoDropout, mask_type(), /*compute_log_sumexp=*/true, attention_scale(query));
    return {output, log_sums, seed, offset};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& made) const override {
    auto [of_query, of_key, of_value, of_bias] = at::_efficient_attention_backward(
        gradient, query, key, value, /*bias=*/{}, made[0], stream_.offsets, stream_.offsets, stream_.max_length,
        stream_.max_length, made[1], kNoDropout, made[2], made[3], mask_type(), /*bias_requires_grad=*/false,
        attention_scale(query));
    return {of_query, of_key, of_value};
  }

 private:
  int64_t mask_type() const {
    constexpr int64_t kNoMask = 0;
    constexpr int64_t kCausalFromTopLeft = 1;
    return stream_.causal ? kCausalFromTopLeft : kNoMask;
  }

  StreamOfSegments stream_;
};

class CudaMasked : public AttentionKernel {
 public:
  explicit CudaMasked(at::Tensor mask) : mask_(std::move(mask)) {}

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, log_sums, seed, offset, rows, keys] = at::_efficient_attention_forward(
        query, key, value, bias_of(query), /*cu_seqlens_q=*/{}, /*cu_seqlens_k=*/{}, query.size(1), key.size(1),
        kNoDropout, kNoMaskOfItsOwn, /*compute_log_sumexp=*/true, attention_scale(query));
    return {output, log_sums, seed, offset};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& made) const override {
    auto [of_query, of_key, of_value, of_bias] = at::_efficient_attention_backward(
        gradient, query, key, value, bias_of(query), made[0], /*cu_seqlens_q=*/{}, /*cu_seqlens_k=*/{}, query.size(1),
        key.size(1), made[1], kNoDropout, made[2], made[3], kNoMaskOfItsOwn, /*bias_requires_grad=*/false,
        attention_scale(query));
    return {of_query, of_key, of_value};
  }

 private:
  static constexpr int64_t kNoMaskOfItsOwn = 0;

  at::Tensor bias_of(const at::Tensor& query) const { return mask_.expand({1, query.size(2), -1, -1}); }

  at::Tensor mask_;
};

class CpuFlash : public AttentionKernel {
 public:
  explicit CpuFlash(bool causal, std::optional<at::Tensor> mask = std::nullopt)
      : causal_(causal), mask_(std::move(mask)) {}

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, log_sums] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, kNoDropout, causal_,
                                                                              mask_, attention_scale(query));
    return {output, log_sums};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& made) const override {
    auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, made[0], made[1], kNoDropout, causal_, mask_, attention_scale(query));
    return {of_query, of_key, of_value};
  }

 private:
  bool causal_;
  std::optional<at::Tensor> mask_;
};

}  // namespace

bool has_flash_kernel(at::ScalarType dtype, at::Device device) {
  constexpr int kOldestArchitecture = 80;
  return dtype != at::kFloat && memory::architecture_of(device) >= kOldestArchitecture;
}

std::shared_ptr<const AttentionKernel> cuda_flash_kernel(StreamOfSegments stream) {
  return std::make_shared<CudaFlash>(std::move(stream));
}

std::shared_ptr<const AttentionKernel> cuda_memory_efficient_kernel(StreamOfSegments stream) {
  return std::make_shared<CudaMemoryEfficient>(std::move(stream));
}

std::shared_ptr<const AttentionKernel> cpu_flash_kernel(bool causal) {
  return std::make_shared<CpuFlash>(causal);
}

std::shared_ptr<const AttentionKernel> cpu_masked_kernel(const at::Tensor& mask) {
  return std::make_shared<CpuFlash>(/*causal=*/false, mask.expand({1, 1, -1, -1}));
}

std::shared_ptr<const AttentionKernel> cuda_masked_kernel(at::Tensor mask) {
  return std::make_shared<CudaMasked>(std::move(mask));
}

}  // namespace vlmtrain::nn
