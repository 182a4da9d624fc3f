#include "train/row_group_limit.h"

#include <algorithm>
#include <cmath>

#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/io/row_group_memory.h"
#include "vlmtrain/memory/host.h"

namespace vlmtrain::train {

void check_row_groups(std::optional<double> limit_gb) {
  const auto memory = io::row_group_memory();
  if (!memory.largest) return;
  constexpr double kBytesPerGigabyte = 1e9;
  memory::HostRoom room = memory::host_room();
  if (limit_gb && *limit_gb * kBytesPerGigabyte < static_cast<double>(room.bytes)) {
    room = {.bytes = std::llround(*limit_gb * kBytesPerGigabyte), .bound = "memory.limit_gb"};
  }
  const io::LargeRowGroup& group = *memory.largest;
  const int64_t own = memory::host_bytes();
  if (own + group.bytes <= room.bytes) return;
  constexpr int64_t kGoodBytes = 64'000'000;
  const auto rows =
      std::max<int64_t>(1, kGoodBytes / std::max<int64_t>(1, group.bytes / std::max<int64_t>(1, group.rows)));
  throw UserError(
      ExitCode::kDoesNotFit,
      fmt::format("{}: its row group {} has {}, which take {:.2f} GB in memory when one of them is read, and this "
                  "process, which takes {:.2f} GB, may have {:.2f} GB ({}); write the file again with smaller row "
                  "groups, such as pyarrow.parquet.write_table(table, file, row_group_size={}), or give it more memory",
                  group.file.string(), group.group, counted(group.rows, "row"), in_gigabytes(group.bytes),
                  in_gigabytes(own), in_gigabytes(room.bytes), room.bound, std::min(rows, group.rows)));
}

}  // namespace vlmtrain::train
