#include <gtest/gtest.h>

#include <string_view>

#include "vlmtrain/planner/backend.h"

// The tests, and the dry-run process that they start: this program with the dry-run command.
int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "dry-run") {
    vlmtrain::planner::serve_dry_runs();
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
