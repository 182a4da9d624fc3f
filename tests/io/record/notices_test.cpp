#include <gmock/gmock.h>

#include <string>

#include "io/record/turns.h"

namespace vlmtrain::io {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<Notice> get_notices(Role role, const std::string& text) {
  std::vector<Notice> notices;
  add_placeholder_notices({{role, text}, {role, text}}, /*are_coordinates_read=*/false, notices);
  return notices;
}

TEST(PlaceholderNotices, OtherPlaceholderSpellingsAreNotices) {
  for (const char* placeholder : {"<image 1>", "<image_00>", "<IMAGE>", "<image_placeholder>", "<img>", "<video_1>"}) {
    const auto notices = get_notices(Role::kUser, std::string("See ") + placeholder + ".");
    ASSERT_THAT(notices, SizeIs(1)) << placeholder;
    EXPECT_THAT(notices[0].kind, HasSubstr("an image placeholder of another format"));
    EXPECT_EQ(notices[0].example, placeholder);
  }
}

TEST(PlaceholderNotices, CoordinatesAreNotices) {
  for (const char* text : {R"({"bbox_2d": [1, 2, 3, 4]})", R"({"point_2d": [1, 2]})", "<|box_start|>(1,2)<|box_end|>",
                           "<box>[[1, 2, 3, 4]]</box>"}) {
    const auto notices = get_notices(Role::kAssistant, text);
    ASSERT_THAT(notices, SizeIs(1)) << text;
    EXPECT_THAT(notices[0].kind, HasSubstr("coordinates"));
  }
}

TEST(PlaceholderNotices, OrdinaryTextsHaveNone) {
  for (const char* text :
       {"<image>\nWhat?", "a < b and c > d", R"(<img src="a.png">)", "<table><tr></tr></table>", "<"}) {
    EXPECT_THAT(get_notices(Role::kUser, text), IsEmpty()) << text;
  }
  EXPECT_THAT(get_notices(Role::kAssistant, "<image 1>"), IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::io
