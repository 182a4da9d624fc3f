#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/emulation/fibers.h"
#include "kernels/planted/faults.h"

namespace vlmtrain::kernels {
namespace {

using emulation::ThreadOrder;
using testing::Contains;
using testing::Each;
using testing::Not;

constexpr float kSum = 256 * 257 / 2;
constexpr ThreadOrder kOrders[] = {ThreadOrder::kForwards, ThreadOrder::kBackwards, ThreadOrder::kShuffled};

std::vector<float> numbers() {
  std::vector<float> values(256);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

class EmulationTest : public testing::Test {
 protected:
  ~EmulationTest() override { emulation::settings() = {}; }
};

TEST_F(EmulationTest, CorrectKernelIsOrderIndependent) {
  for (const ThreadOrder order : kOrders) {
    emulation::settings().order = order;
    EXPECT_THAT(planted::block_sum(numbers()), Each(kSum));
  }
}

TEST_F(EmulationTest, MissingBarrierIsDetected) {
  for (const ThreadOrder order : kOrders) {
    emulation::settings().order = order;
    EXPECT_THAT(planted::block_sum_without_barrier(numbers()), Contains(Not(kSum))) << static_cast<int>(order);
  }
}

TEST_F(EmulationTest, RaceDependsOnOrder) {
  emulation::settings().order = ThreadOrder::kForwards;
  const auto forwards = planted::race(numbers());
  emulation::settings().order = ThreadOrder::kBackwards;
  const auto backwards = planted::race(numbers());
  EXPECT_TRUE(forwards != backwards);
}

TEST_F(EmulationTest, DivergentBarrierThrows) {
  EXPECT_THROW(planted::divergent_barrier(), std::runtime_error);
  EXPECT_THAT(planted::block_sum(numbers()), Each(kSum)) << "and the next kernel runs";
}

TEST_F(EmulationTest, MisalignedAddressThrows) {
  EXPECT_THROW(planted::misaligned_read(numbers()), std::runtime_error);
  EXPECT_THAT(planted::block_sum(numbers()), Each(kSum)) << "and the next kernel runs";
}

TEST_F(EmulationTest, UnwrittenSharedMemoryIsNan) {
  EXPECT_TRUE(std::isnan(planted::unwritten()));
}

}  // namespace
}  // namespace vlmtrain::kernels
