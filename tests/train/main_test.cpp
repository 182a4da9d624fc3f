#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "vlmtrain/planner/backend.h"

// Runs the tests, and the dry run process that they start: this program with the argument
// `dry-run`.
int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "dry-run") {
    vlmtrain::planner::serve_dry_runs();
    return 0;
  }
  // Measurements of tests must not reach the user's file.
  setenv("VLMTRAIN_PAST_RUNS", "off", 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
