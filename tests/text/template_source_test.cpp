#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "vlmtrain/base/error.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int64_t> parse_ids(std::string_view config) {
  return parse_eos_token_ids(nlohmann::json::parse(config), "generation_config.json");
}

TEST(EosTokenIds, AcceptsOneSeveralOrNone) {
  EXPECT_THAT(parse_ids(R"({"eos_token_id": 7})"), ElementsAre(7));
  EXPECT_THAT(parse_ids(R"({"eos_token_id": [7, 2]})"), ElementsAre(7, 2));
  EXPECT_THAT(parse_ids(R"({"eos_token_id": []})"), IsEmpty());
  EXPECT_THAT(parse_ids(R"({"eos_token_id": null})"), IsEmpty());
  EXPECT_THAT(parse_ids("{}"), IsEmpty());
}

TEST(EosTokenIds, RejectsOtherValuesNamingFileAndKey) {
  for (const auto* const config : {R"({"eos_token_id": "</s>"})", R"({"eos_token_id": [7, "</s>"]})",
                                   R"({"eos_token_id": 7.5})", R"({"eos_token_id": {"id": 7}})", "[7]"}) {
    try {
      parse_ids(config);
      ADD_FAILURE() << config;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData) << config;
      EXPECT_THAT(error.what(), testing::HasSubstr("generation_config.json")) << config;
      EXPECT_THAT(error.what(), testing::HasSubstr("eos_token_id")) << config;
    }
  }
}

}  // namespace
}  // namespace vlmtrain::text
