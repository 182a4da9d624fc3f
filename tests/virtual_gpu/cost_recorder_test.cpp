#include "planner/dry_run/cost_recorder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "virtual_gpu/virtual_gpu.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/nn/attention/attention.h"

namespace vlmtrain::planner {
namespace {

/// The virtual GPU only counts; predictions name their GPU.
class CostRecorderTest : public testing::Test {
 protected:
  void SetUp() override { static_cast<void>(virtual_gpu()); }

  static OperationCost measure_cost(const char* gpu, const std::function<void()>& work) {
    const at::NoGradGuard no_gradients;
    const CostRecorder recorder(*memory::find_gpu_spec(gpu), at::kBFloat16);
    work();
    return recorder.costs().total;
  }

  at::Tensor matrix(at::IntArrayRef sizes) const {
    return at::empty(sizes, at::TensorOptions(device_).dtype(at::kBFloat16));
  }

  double measure_matmul_seconds(const char* gpu, int64_t columns) const {
    const at::Tensor a = matrix({4096, 4096}), b = matrix({4096, columns});
    return measure_cost(gpu, [&] { at::mm(a, b); }).seconds / static_cast<double>(columns);
  }

  double measure_attention_seconds(const char* gpu, int64_t head) const {
    const at::Tensor x = matrix({4096, 16, head});
    const auto segments = nn::Segments::from_lengths({4096}, device_);
    return measure_cost(gpu, [&] { nn::attention(x, x, x, segments, /*is_causal=*/false); }).seconds;
  }

  at::Device device_ = memory::open_device("cuda");
};

TEST_F(CostRecorderTest, UnalignedMatmulsAreSlowerOnHopper) {
  EXPECT_NEAR(measure_matmul_seconds("h200", 3420) / measure_matmul_seconds("h200", 3424), 1 / 0.36, 0.01);
  EXPECT_NEAR(measure_matmul_seconds("a100-80", 3420) / measure_matmul_seconds("a100-80", 3424), 1, 1e-6);
  const at::Tensor a = matrix({4096, 4096}), wide = matrix({4096, 6848});
  const auto seconds = [&](int64_t first) {
    return measure_cost("h200", [&] { at::mm(a, wide.narrow(1, first, 3424)); }).seconds;
  };
  EXPECT_GT(seconds(3420), 2 * seconds(3424)) << "which begin at 8 bytes";
}

TEST_F(CostRecorderTest, HeadSizesRoundUpToKernelSizes) {
  EXPECT_DOUBLE_EQ(measure_attention_seconds("h200", 72), measure_attention_seconds("h200", 96));
  EXPECT_LT(measure_attention_seconds("h200", 64), measure_attention_seconds("h200", 72));
}

TEST_F(CostRecorderTest, InPlaceListsCountTwice) {
  const std::vector<at::Tensor> list{matrix({1000, 8}), matrix({3000, 8})};
  const double bytes = 4000 * 8 * 2;
  EXPECT_DOUBLE_EQ(measure_cost("h200", [&] { at::_foreach_mul_(list, 2); }).bytes_moved, 2 * bytes);
}

}  // namespace
}  // namespace vlmtrain::planner
