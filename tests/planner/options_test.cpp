#include "vlmtrain/planner/options.h"

#include "base/option_values.h"

namespace vlmtrain::planner {
namespace {

TEST(MemoryOptionsTest, EachKeyTakesWhatItsDocumentationSays) {
  expect_values<MemoryOptions>({
      {"memory.limit_gb", {"auto", "0.001", "1000000"}, {"0", "-1", "1000001"}},
      {"memory.mode", {"conservative", "balanced", "aggressive"}, {"bold"}},
      {"memory.recompute", {"auto", "none", "all", "0", "12", "3+24"}, {"-1", "3+", "+3", "3+4+5", "some", "1234567"}},
      {"memory.vision_tiles_per_pass", {"auto", "0", "1"}, {"-1"}},
      {"memory.loss_chunk_rows", {"auto", "1"}, {"0"}},
      {"memory.empty_cache_above", {"0", "1"}, {"-0.1", "1.1"}},
  });
}

}  // namespace
}  // namespace vlmtrain::planner
