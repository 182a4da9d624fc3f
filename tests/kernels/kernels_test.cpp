#include "vlmtrain/kernels/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "vlmtrain/base/error.h"

namespace vlmtrain::kernels {
namespace {

TEST(KernelNames, IdentifyEachKernel) {
  for (const Kernel kernel : list_kernels()) {
    EXPECT_EQ(parse_kernel(to_string(kernel)), kernel);
    EXPECT_EQ(get_kernel(to_string(kernel)), kernel);
  }
}

TEST(KernelNames, FormerNamesAreAccepted) {
  EXPECT_EQ(parse_kernel("gate"), Kernel::kGatedActivation);
  EXPECT_EQ(parse_kernel("rotate"), Kernel::kRope);
  EXPECT_EQ(parse_kernel("norm_rotate"), Kernel::kQkNormRope);
  EXPECT_EQ(parse_kernel("patches"), Kernel::kPatchify);
}

TEST(KernelNames, UnknownNamesAreRejected) {
  EXPECT_EQ(parse_kernel("softmax"), std::nullopt);
  EXPECT_EQ(parse_kernel(""), std::nullopt);
  EXPECT_THROW(get_kernel(""), InternalError);
}

TEST(KernelNames, AreDocumented) {
  std::ifstream file(VLMTRAIN_SOURCE_DIR "/docs/explanation/kernels.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (const Kernel kernel : list_kernels())
    EXPECT_THAT(page, testing::HasSubstr("`" + std::string(to_string(kernel)) + "`"));
}

}  // namespace
}  // namespace vlmtrain::kernels
