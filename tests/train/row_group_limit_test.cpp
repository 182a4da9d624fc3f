#include "train/row_group_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/parquet_test.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/row_group_memory.h"

namespace vlmtrain::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using RowGroupLimit = io::ParquetTest;

TEST_F(RowGroupLimit, ComparesTheLargestGroupOfOpenFiles) {
  constexpr double kTinyLimitGb = 1e-6;
  check_row_groups(kTinyLimitGb);  // no file is open
  const auto small = io::open_records(io::golden_path("cauldron.parquet"), {});
  const auto large = io::open_records(io::golden_path("mixed_batch.parquet"), {});
  check_row_groups({});
  check_row_groups(1e6);
  EXPECT_THAT(io::get_error_message([&] { check_row_groups(kTinyLimitGb); }, ExitCode::kDoesNotFit),
              AllOf(HasSubstr("mixed_batch.parquet: its row group "), HasSubstr("GB (memory.limit_gb)"),
                    HasSubstr("row_group_size=")));
  EXPECT_EQ(suggest_row_group_size(), "") << "they are small";
  EXPECT_EQ(io::get_row_group_memory().cached_bytes, 0) << "nothing was read";
}

}  // namespace
}  // namespace vlmtrain::train
