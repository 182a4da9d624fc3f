#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {
namespace {

class OnDemandSafetensorsTest : public TemporaryFolderTest {
 protected:
  /// Headers of less and of more than a page, types of all widths, sizes that are no multiples of anything.
  std::filesystem::path put_tensors(int64_t count) const {
    NamedTensors tensors{{"none", at::empty({0, 3}, at::kFloat)}};
    for (int64_t i = 0; i < count; ++i) {
      const auto type = std::array{at::kFloat, at::kBFloat16, at::kByte, at::kLong}[static_cast<size_t>(i % 4)];
      tensors.emplace_back(fmt::format("tensor.{}", i), at::arange(1 + 1237 * i).to(type));
    }
    const auto file = folder() / fmt::format("{}.safetensors", count);
    write_safetensors(file, tensors);
    return file;
  }
};

TEST_F(OnDemandSafetensorsTest, MatchTheFile) {
  for (const int64_t count : {1, 5, 90}) {
    const auto path = put_tensors(count);
    const SafetensorsFile all_tensors(path);
    const OnDemandSafetensors on_demand(path);
    ASSERT_EQ(on_demand.names(), all_tensors.names());
    for (const auto& name : all_tensors.names()) {
      EXPECT_EQ(on_demand.info(name).shape, all_tensors.shape(name));
      EXPECT_TRUE(at::equal(on_demand.tensor(name), all_tensors.tensor(name))) << name;
    }
    EXPECT_THROW(static_cast<void>(on_demand.tensor("other")), UserError);
  }
}

TEST_F(OnDemandSafetensorsTest, ReportsDamageLikeSafetensorsFile) {
  const auto get_error_message = [](const auto& open) -> std::string {
    try {
      open();
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing is wrong";
  };
  for (const uintmax_t bytes : {0U, 4U, 100U, 5000U}) {
    const auto path = put_tensors(90);
    std::filesystem::resize_file(path, bytes);
    EXPECT_EQ(get_error_message([&] { const OnDemandSafetensors on_demand(path); }),
              get_error_message([&] { const SafetensorsFile file(path); }));
  }
}

}  // namespace
}  // namespace vlmtrain::io
