#include "kernels/self_test.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <exception>
#include <optional>

#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/rows.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::kernels {

namespace {

using KernelTest = std::vector<ComparedTensors>(RandomInputs&, const KernelTestSizes&);

/// By Kernel.
constexpr KernelTest* kKernelTests[]{
#define VLMTRAIN_TEST(enumerator, name, former_name) test_##name,
    VLMTRAIN_KERNEL_TABLE(VLMTRAIN_TEST, VLMTRAIN_SKIP)
#undef VLMTRAIN_TEST
};

/// Maps 24 random bits, the precision of fp32, to [−2, 2).
float draw_uniform(RandomStream& random_stream) {
  return static_cast<float>(random_stream.next() >> 40) * 0x1p-22F - 2;
}

/// Returns the relative tolerance. 16-bit types: one unit in the last place, because values near a
/// midpoint round either way. fp32: rounding errors of intermediate results; chosen without
/// measurement.
double compute_tolerance(at::ScalarType dtype) {
  constexpr double kFp32Tolerance = 2e-5;
  return dtype == at::kBFloat16 ? 0x1p-7 : dtype == at::kHalf ? 0x1p-10 : kFp32Tolerance;
}

int64_t count_mismatches(const ComparedTensors& compared) {
  const at::Tensor actual = compared.actual.to(at::kCPU).to(at::kDouble);
  const at::Tensor expected = compared.expected.to(at::kCPU).to(at::kDouble);
  // Values below 0.1 are compared absolutely, because sums of larger terms can cancel.
  const at::Tensor tolerance = (expected.abs() + 0.1) * compute_tolerance(compared.expected.scalar_type());
  // Negated so that NaN counts as a mismatch.
  return ((actual - expected).abs() <= tolerance).logical_not().sum().item<int64_t>();
}

std::optional<std::string> find_kernel_failure(Kernel kernel, at::Device device, at::ScalarType dtype) {
  try {
    for (const ComparedTensors& compared : run_kernel_test(kernel, device, dtype)) {
      if (const int64_t count = count_mismatches(compared); count > 0)
        return fmt::format("{} of {} values differ from ATen's", count, compared.expected.numel());
    }
    return std::nullopt;
  } catch (const std::exception& error) {
    return get_first_line(error.what());
  }
}

std::vector<at::ScalarType> get_supported_dtypes(at::Device device) {
  constexpr int kMinBf16Architecture = 80;  // sm_80, Ampere
  const bool has_bf16 = device.is_cpu() || memory::get_architecture(device) >= kMinBf16Architecture;
  return {at::kFloat, has_bf16 ? at::kBFloat16 : at::kHalf};
}

}  // namespace

at::Tensor RandomInputs::make_tensor(at::IntArrayRef sizes) {
  const at::Tensor values = at::empty(sizes, at::kFloat);
  auto* value = values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) *value++ = draw_uniform(random_stream_);
  return values.to(options_);
}

at::Tensor copy_to_bordered_rows(const at::Tensor& x) {
  return allocate_bordered_rows(x.sizes(), kTestBorderColumns, x.options()).copy_(x);
}

std::vector<ComparedTensors> run_kernel_test(Kernel kernel, at::Device device, at::ScalarType dtype,
                                             const KernelTestSizes& sizes) {
  RandomInputs inputs(device, dtype);
  return kKernelTests[static_cast<size_t>(kernel)](inputs, sizes);
}

std::vector<FailedKernelTest> find_failed_kernel_tests(at::Device device) {
  std::vector<FailedKernelTest> failed_tests;
  for (const Kernel kernel : list_kernels()) {
    if (get_disabled_kernels().contains(kernel)) continue;
    for (const at::ScalarType dtype : get_supported_dtypes(device)) {
      auto failure = find_kernel_failure(kernel, device, dtype);
      if (!failure) continue;
      failed_tests.push_back({kernel, fmt::format("{} in {}: {}", to_string(kernel), toString(dtype), *failure)});
      break;
    }
  }
  if (!device.is_cpu()) memory::empty_cache(device);
  return failed_tests;
}

}  // namespace vlmtrain::kernels
