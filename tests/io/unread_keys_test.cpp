#include <gmock/gmock.h>

#include <array>

#include "vlmtrain/io/json.h"

namespace vlmtrain::io {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(UnreadKeysTest, ReturnsKeysThatAreNeitherReadNorHarmless) {
  constexpr std::array<std::string_view, 1> kRead{"id"};
  constexpr std::array<HarmlessKey, 1> kHarmless{{{"source", "provenance"}}};
  const auto object = nlohmann::json::parse(R"({"id": 1, "source": "x", "weight": 0, "bbox": [1]})");
  EXPECT_THAT(find_unread_keys(object, kRead, kHarmless), ElementsAre("bbox", "weight"));
}

TEST(UnreadKeysTest, SkipsEmptyValues) {
  const auto object = nlohmann::json::parse(R"({"a": null, "b": "", "c": [], "d": {}})");
  EXPECT_THAT(find_unread_keys(object, {}), IsEmpty());
  EXPECT_THAT(find_unread_keys({{"zero", 0}, {"no", false}}, {}), ElementsAre("no", "zero"));
}

}  // namespace
}  // namespace vlmtrain::io
