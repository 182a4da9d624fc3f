#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "e2e/command.h"

namespace vlmtrain::e2e {

/// Runs `vlmtrain plan` as people and scripts do.
class PlanCommandTest : public CommandTest {
 protected:
  Result plan(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "plan");
    return run(arguments);
  }

  /// Joins the lines of a text.
  static std::string on_one_line(const std::string& text) {
    std::istringstream word_stream(text);
    std::string line;
    for (std::string argument; word_stream >> argument;) line += (line.empty() ? "" : " ") + argument;
    return line;
  }

  /// Parses stdout, which must be one JSON object.
  static nlohmann::ordered_json parse_plan(const Result& result) {
    EXPECT_EQ(split_lines(result.out).size(), 1U) << result.out;
    const auto json = nlohmann::ordered_json::parse(result.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(json.is_object()) << result.out << result.err;
    return json;
  }

  nlohmann::ordered_json plan_json(std::vector<std::string> arguments, int exit_code = 0) const {
    arguments.emplace_back("--json");
    const Result result = plan(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    return parse_plan(result);
  }

  void expect_error(std::vector<std::string> arguments, int exit_code, const std::vector<std::string>& messages) const {
    arguments.emplace_back("--json");
    const Result result = plan(arguments);
    EXPECT_EQ(result.exit_code, exit_code) << testing::PrintToString(arguments) << result.err;
    EXPECT_THAT(result.out, testing::IsEmpty()) << testing::PrintToString(arguments);
    for (const auto& message : messages) EXPECT_THAT(result.err, testing::HasSubstr(message));
    EXPECT_THAT(result.err, testing::Not(testing::HasSubstr("internal error")));
  }
};

}  // namespace vlmtrain::e2e
