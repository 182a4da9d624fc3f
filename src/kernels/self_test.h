#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/base/hash.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/kernels/kernels.h"

namespace vlmtrain::kernels {

/// Sizes of a self-test's inputs.
struct KernelTestSizes {
  int64_t rows = 5;
  std::vector<int64_t> columns{64, 33};  ///< one width that is a multiple of a pack (16 bytes), one that is not
  int64_t super_blocks = 3;              ///< of NF4; the second weight begins at superblock 2
  int64_t parameters = 300;              ///< elements of the parameter of adamw(): one whole moment block and a part
  image::ImageSize image_size{33, 48};   ///< not a multiple of the patch sizes in height
};

/// Uniform random tensors in [−2, 2) from the CPU's generator, which are equal on every device.
class RandomInputs {
 public:
  RandomInputs(at::Device device, at::ScalarType dtype) : options_(at::TensorOptions(device).dtype(dtype)) {}

  at::Tensor make_tensor(at::IntArrayRef sizes);
  at::Tensor make_fp32_tensor(at::IntArrayRef sizes) { return make_tensor(sizes).to(at::kFloat); }
  /// Returns bytes in [0, 252).
  at::Tensor make_byte_tensor(at::IntArrayRef sizes) { return make_fp32_tensor(sizes).add_(2).mul_(63).to(at::kByte); }

 private:
  at::TensorOptions options_;
  RandomStream random_stream_{derive_stream_seed(1, "kernels", {})};
};

inline constexpr int64_t kTestBorderColumns = 8;  ///< after rows of self-tests

/// Returns a copy of x [rows, columns] with kTestBorderColumns uninitialized columns after its rows.
at::Tensor copy_to_bordered_rows(const at::Tensor& x);

/// The output of a kernel and of its reference, which the kernel's header declares.
struct ComparedTensors {
  at::Tensor actual, expected;
};

// The self-test of each kernel, in its source: runs the kernel and its reference on random inputs
// and returns all pairs of outputs.
#define VLMTRAIN_TEST(enumerator, name, former_name) \
  std::vector<ComparedTensors> test_##name(RandomInputs& inputs, const KernelTestSizes& sizes);
VLMTRAIN_KERNEL_TABLE(VLMTRAIN_TEST, VLMTRAIN_SKIP)
#undef VLMTRAIN_TEST

/// Runs the kernel's test on inputs of type `dtype`. Throws c10::Error if a launch fails. REQUIRES: is_available()
/// returns true for the device.
std::vector<ComparedTensors> run_kernel_test(Kernel kernel, at::Device device, at::ScalarType dtype,
                                             const KernelTestSizes& sizes = {});

/// A kernel that failed its self-test.
struct FailedKernelTest {
  Kernel kernel;
  std::string description;  ///< names the kernel, the data type and the failure
};

/// Compares every available kernel with ATen on small random inputs, in fp32 and, from sm_80 on,
/// bf16, else fp16. Returns the kernels whose difference exceeds rounding errors or whose launch
/// fails. Returns the caching allocator's unused memory to the device.
std::vector<FailedKernelTest> find_failed_kernel_tests(at::Device device);

}  // namespace vlmtrain::kernels
