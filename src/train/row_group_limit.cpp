#include "train/row_group_limit.h"

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/io/row_group_memory.h"
#include "vlmtrain/memory/host.h"

namespace vlmtrain::train {
namespace {

/// Row groups of this size are read at little cost, and few of them are in memory.
constexpr int64_t kTargetRowGroupBytes = 64'000'000;

int64_t recommend_row_group_size(const io::LargeRowGroup& group) {
  const int64_t row_bytes = std::max<int64_t>(1, group.bytes / std::max<int64_t>(1, group.rows));
  return std::clamp<int64_t>(kTargetRowGroupBytes / row_bytes, 1, std::max<int64_t>(1, group.rows));
}

}  // namespace

void check_row_groups(std::optional<double> limit_gb) {
  const auto memory = io::get_row_group_memory();
  if (!memory.largest) return;
  constexpr double kBytesPerGigabyte = 1e9;
  memory::AvailableHostMemory available = memory::get_available_host_memory();
  if (limit_gb && *limit_gb * kBytesPerGigabyte < static_cast<double>(available.bytes)) {
    available = {.bytes = std::llround(*limit_gb * kBytesPerGigabyte), .limit_source = "memory.limit_gb"};
  }
  const io::LargeRowGroup& group = *memory.largest;
  const int64_t process_bytes = memory::host_bytes();
  if (process_bytes + 2 * group.bytes <= available.bytes) return;
  throw UserError(
      ExitCode::kDoesNotFit,
      fmt::format("{}: its row group {} has {} of {:.2f} GB, which takes twice as much while it is read, and this "
                  "process, which takes {:.2f} GB, may have {:.2f} GB ({}); write the file again with smaller row "
                  "groups, such as pyarrow.parquet.write_table(table, file, row_group_size={}), or give it more memory",
                  group.file.string(), group.group, pluralize(group.rows, "row"), to_gigabytes(group.bytes),
                  to_gigabytes(process_bytes), to_gigabytes(available.bytes), available.limit_source,
                  recommend_row_group_size(group)));
}

std::string suggest_row_group_size() {
  const auto memory = io::get_row_group_memory();
  if (!memory.largest || memory.largest->bytes <= kTargetRowGroupBytes) return {};
  const io::LargeRowGroup& group = *memory.largest;
  return fmt::format(
      "{} has row groups of up to {:.2f} GB, of which each is read whole: write it again with "
      "row_group_size={}",
      group.file.string(), to_gigabytes(group.bytes), recommend_row_group_size(group));
}

}  // namespace vlmtrain::train
