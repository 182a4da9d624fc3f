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
  explicit CudaFlash(VarlenArgs args) : args_(std::move(args)) {
    if (!args_.window) return;
    rows_before_ = *args_.window - 1;
    rows_after_ = 0;
  }

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, logsumexp, random_state, unused, mask] = at::_flash_attention_forward(
        query, key, value, args_.offsets, args_.offsets, args_.max_length, args_.max_length, kNoDropout, args_.causal,
        /*return_debug_mask=*/false, attention_scale(query), rows_before_, rows_after_);
    return {output, logsumexp, random_state, unused};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& outputs) const override {
    auto [dq, dk, dv] =
        at::_flash_attention_backward(gradient, query, key, value, outputs[0], outputs[1], args_.offsets, args_.offsets,
                                      args_.max_length, args_.max_length, kNoDropout, args_.causal, outputs[2],
                                      outputs[3], attention_scale(query), rows_before_, rows_after_);
    return {dq, dk, dv};
  }

 private:
  VarlenArgs args_;
  std::optional<int64_t> rows_before_, rows_after_;
};

class CudaMemoryEfficient : public AttentionKernel {
 public:
  explicit CudaMemoryEfficient(VarlenArgs args) : args_(std::move(args)) {}

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, logsumexp, seed, offset, rows, keys] = at::_efficient_attention_forward(
        query, key, value, /*bias=*/{}, args_.offsets, args_.offsets, args_.max_length, args_.max_length, kNoDropout,
        mask_type(), /*compute_log_sumexp=*/true, attention_scale(query));
    return {output, logsumexp, seed, offset};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& outputs) const override {
    auto [dq, dk, dv, dbias] = at::_efficient_attention_backward(
        gradient, query, key, value, /*bias=*/{}, outputs[0], args_.offsets, args_.offsets, args_.max_length,
        args_.max_length, outputs[1], kNoDropout, outputs[2], outputs[3], mask_type(), /*bias_requires_grad=*/false,
        attention_scale(query));
    return {dq, dk, dv};
  }

 private:
  int64_t mask_type() const {
    constexpr int64_t kNoMask = 0;
    constexpr int64_t kCausalFromTopLeft = 1;
    return args_.causal ? kCausalFromTopLeft : kNoMask;
  }

  VarlenArgs args_;
};

class CudaMasked : public AttentionKernel {
 public:
  explicit CudaMasked(at::Tensor mask) : mask_(std::move(mask)) {}

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, logsumexp, seed, offset, rows, keys] = at::_efficient_attention_forward(
        query, key, value, expand_bias(query), /*cu_seqlens_q=*/{}, /*cu_seqlens_k=*/{}, query.size(1), key.size(1),
        kNoDropout, kNoBuiltinMask, /*compute_log_sumexp=*/true, attention_scale(query));
    return {output, logsumexp, seed, offset};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& outputs) const override {
    auto [dq, dk, dv, dbias] = at::_efficient_attention_backward(
        gradient, query, key, value, expand_bias(query), outputs[0], /*cu_seqlens_q=*/{}, /*cu_seqlens_k=*/{},
        query.size(1), key.size(1), outputs[1], kNoDropout, outputs[2], outputs[3], kNoBuiltinMask,
        /*bias_requires_grad=*/false, attention_scale(query));
    return {dq, dk, dv};
  }

 private:
  static constexpr int64_t kNoBuiltinMask = 0;

  at::Tensor expand_bias(const at::Tensor& query) const { return mask_.expand({1, query.size(2), -1, -1}); }

  at::Tensor mask_;
};

class CpuFlash : public AttentionKernel {
 public:
  explicit CpuFlash(bool causal, std::optional<at::Tensor> mask = std::nullopt)
      : causal_(causal), mask_(std::move(mask)) {}

  std::vector<at::Tensor> forward(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value) const override {
    auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, kNoDropout, causal_,
                                                                               mask_, attention_scale(query));
    return {output, logsumexp};
  }

  Gradients backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const std::vector<at::Tensor>& outputs) const override {
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, outputs[0], outputs[1], kNoDropout, causal_, mask_, attention_scale(query));
    return {dq, dk, dv};
  }

 private:
  bool causal_;
  std::optional<at::Tensor> mask_;
};

}  // namespace

bool has_flash_kernel(at::ScalarType dtype, at::Device device) {
  constexpr int kMinArchitecture = 80;
  return dtype != at::kFloat && memory::get_architecture(device) >= kMinArchitecture;
}

std::shared_ptr<const AttentionKernel> make_cuda_flash_kernel(VarlenArgs args) {
  return std::make_shared<CudaFlash>(std::move(args));
}

std::shared_ptr<const AttentionKernel> make_cuda_memory_efficient_kernel(VarlenArgs args) {
  return std::make_shared<CudaMemoryEfficient>(std::move(args));
}

std::shared_ptr<const AttentionKernel> make_cpu_flash_kernel(bool causal) {
  return std::make_shared<CpuFlash>(causal);
}

std::shared_ptr<const AttentionKernel> make_cpu_masked_kernel(const at::Tensor& mask) {
  return std::make_shared<CpuFlash>(/*causal=*/false, mask.expand({1, 1, -1, -1}));
}

std::shared_ptr<const AttentionKernel> make_cuda_masked_kernel(at::Tensor mask) {
  return std::make_shared<CudaMasked>(std::move(mask));
}

}  // namespace vlmtrain::nn
