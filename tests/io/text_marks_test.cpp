#include "io/text_marks.h"

#include <gmock/gmock.h>

#include <string>

namespace vlmtrain::io {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<Notice> notices_of(Role role, const std::string& text) {
  std::vector<Notice> notices;
  note_marks_in_texts({{role, text}, {role, text}}, notices);
  return notices;
}

TEST(TextMarks, OtherSpellingsOfPlacesAreNotices) {
  for (const char* mark : {"<image 1>", "<image_00>", "<IMAGE>", "<image_placeholder>", "<img>", "<video_1>"}) {
    const auto notices = notices_of(Role::kUser, std::string("See ") + mark + ".");
    ASSERT_THAT(notices, SizeIs(1)) << mark;
    EXPECT_THAT(notices[0].kind, HasSubstr("no place here"));
    EXPECT_EQ(notices[0].example, mark);
  }
}

TEST(TextMarks, CoordinatesAreNotices) {
  for (const char* text : {R"({"bbox_2d": [1, 2, 3, 4]})", R"({"point_2d": [1, 2]})", "<|box_start|>(1,2)<|box_end|>",
                           "<box>[[1, 2, 3, 4]]</box>"}) {
    const auto notices = notices_of(Role::kAssistant, text);
    ASSERT_THAT(notices, SizeIs(1)) << text;
    EXPECT_THAT(notices[0].kind, HasSubstr("coordinates"));
  }
}

TEST(TextMarks, OrdinaryTextsHaveNone) {
  for (const char* text :
       {"<image>\nWhat?", "a < b and c > d", R"(<img src="a.png">)", "<table><tr></tr></table>", "<"}) {
    EXPECT_THAT(notices_of(Role::kUser, text), IsEmpty()) << text;
  }
  EXPECT_THAT(notices_of(Role::kAssistant, "<image 1>"), IsEmpty());
}

}  // namespace
}  // namespace vlmtrain::io
