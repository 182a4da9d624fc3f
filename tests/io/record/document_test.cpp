#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/record/record_reader.h"
#include "vlmtrain/base/base64.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Record read_document(std::string_view record, const RecordSettings& settings = {}) {
  return RecordReader(settings, "/data").read(RecordJson::parse(record), "r");
}

/// Returns the text of a document, with the files of its images in place of their placeholders.
std::string describe_document(const Record& record) {
  EXPECT_EQ(record.problem, "");
  if (!record.is_document()) return "no document";
  EXPECT_EQ(record.turns.size(), 1U);
  std::string text = record.turns.front().text;
  const auto placeholders = find_placeholders(record.turns.front());
  EXPECT_EQ(placeholders.size(), record.images.size() + record.videos.size());
  size_t image = record.images.size(), video = record.videos.size();
  for (auto it = placeholders.rbegin(); it != placeholders.rend(); ++it) {
    const std::string& path = it->is_video ? record.videos[--video].path : record.images[--image].path;
    text.replace(it->begin, kImagePlaceholder.size(), fmt::format("[{}]", path));
  }
  return text;
}

TEST(Document, TextIsOneTurn) {
  const Record record = read_document(R"({"text": " A text.\n", "source": "web", "meta": {"url": "x"}})");
  EXPECT_EQ(describe_document(record), " A text.\n");
  EXPECT_THAT(record.notices, ElementsAre(testing::Field(&Notice::kind, "key \"meta\" of a record")));
}

TEST(Document, PlaceholdersInTextsWithoutMediaAreText) {
  EXPECT_EQ(describe_document(read_document(R"({"text": "<image>\nA tag, <video>."})")), "<image>\nA tag, <video>.");
  EXPECT_EQ(describe_document(
                read_document(R"({"texts": ["A <image> tag", null, "<video>"], "images": [null, "a.jpg", null]})")),
            "A <image> tag[/data/a.jpg]<video>");
  EXPECT_EQ(describe_document(read_document(
                R"({"document": ["<image>", {"type": "text", "text": "a <image>"}, {"image": "b.png"}]})")),
            "<image>a <image>[/data/b.png]");
}

TEST(Document, PlaceholdersInTextStandForListedMedia) {
  EXPECT_EQ(describe_document(read_document(R"({"text": "A <image> and <image>.", "images": ["a.jpg", "b.jpg"]})")),
            "A [/data/a.jpg] and [/data/b.jpg].");
  EXPECT_EQ(describe_document(read_document(R"({"text": "See <video>.", "video": "v.mp4"})")), "See [/data/v.mp4].");
  EXPECT_EQ(describe_document(read_document(R"({"text": "\nA caption.", "image": "a.jpg"})")),
            "[/data/a.jpg]\nA caption.");
  EXPECT_THAT(read_document(R"({"text": "A <image>\n<image>", "images": ["a.jpg"]})").problem,
              HasSubstr("each image needs one placeholder"));
}

TEST(Document, TextsAndImagesOfObelics) {
  EXPECT_EQ(describe_document(
                read_document(R"({"texts": ["One.", null, null, "Two."], "images": [null, "a.jpg", "b.jpg", null],
                              "metadata": [null, {"alt": "x"}, null, null]})")),
            "One.[/data/a.jpg][/data/b.jpg]Two.");
  EXPECT_EQ(describe_document(read_document(R"({"texts": ["One."], "images": [null]})")), "One.");
  EXPECT_EQ(describe_document(read_document(R"({"texts": ["One.", ""], "images": ["", "a.jpg"]})")),
            "One.[/data/a.jpg]")
      << "tables fill missing texts with \"\"";
  const std::string png = base64_encode("\x89PNG\r\n\x1a\n");
  const Record bytes =
      read_document(fmt::format(R"({{"texts": ["One.", null], "images": [null, "data:image/png;base64,{}"]}})", png));
  ASSERT_EQ(bytes.problem, "");
  EXPECT_TRUE(bytes.images.at(0).bytes);
}

TEST(Document, TextsOfTheCauldronAreTurns) {
  const Record record = read_document(R"({"images": ["a.jpg"], "texts": [{"user": "Q", "assistant": "A"}]})");
  EXPECT_EQ(record.problem, "");
  EXPECT_FALSE(record.is_document());
  EXPECT_EQ(record.turns.size(), 2U);
}

TEST(Document, InvalidTextsAndImages) {
  EXPECT_THAT(read_document(R"({"texts": ["One.", null], "images": [null]})").problem,
              AllOf(HasSubstr("\"texts\" has 2 entries"), HasSubstr("\"images\" has 1")));
  EXPECT_THAT(read_document(R"({"texts": ["One.", null], "images": [null, null]})").problem,
              AllOf(HasSubstr("entry 2"), HasSubstr("neither a text nor an image")));
  EXPECT_THAT(read_document(R"({"texts": ["One.", "Two."], "images": ["a.jpg", null]})").problem,
              AllOf(HasSubstr("entry 1"), HasSubstr("a text and an image")));
  EXPECT_THAT(read_document(R"({"texts": [null], "images": ["a.jpg"]})").problem, HasSubstr("no text to learn"));
  EXPECT_THAT(read_document(R"({"texts": ["One.", null], "images": [null, 7]})").problem,
              HasSubstr("image is not a path"));
  EXPECT_THAT(read_document(R"({"texts": ["One.", null], "images": [null, "https://x/a.jpg"]})").problem,
              HasSubstr("only files are supported"));
  EXPECT_THAT(read_document(R"({"texts": ["One.", 7], "images": [null, null]})").problem, HasSubstr("\"texts\""));
}

TEST(Document, TextListOfMmc4) {
  EXPECT_EQ(describe_document(read_document(R"({"text_list": ["One.", "Two.", "Three."], "similarity_matrix": [[0.1]],
                              "image_info": [{"image_name": "b.jpg", "matched_text_index": 2, "raw_url": "u"},
                                             {"image_name": "a.jpg", "matched_text_index": 0},
                                             {"image_name": "c.jpg", "matched_text_index": 2}]})")),
            "[/data/a.jpg]One. Two.[/data/b.jpg][/data/c.jpg]Three.");
  EXPECT_EQ(describe_document(read_document(R"({"text_list": ["One.", "Two."]})")), "One. Two.");
  for (const char* index : {"2", "-1"}) {
    EXPECT_THAT(read_document(fmt::format(R"({{"text_list": ["One.", "Two."],
                                      "image_info": [{{"image_name": "a.jpg", "matched_text_index": {}}}]}})",
                                          index))
                    .problem,
                AllOf(HasSubstr("entry 1"), HasSubstr(fmt::format("text {}", index)), HasSubstr("has 2")));
  }
  EXPECT_THAT(read_document(R"({"text_list": ["One."], "image_info": [{"image_name": "a.jpg"}]})").problem,
              HasSubstr("\"matched_text_index\""));
  EXPECT_THAT(read_document(R"({"text_list": ["One."], "image_info": [{"matched_text_index": 0}]})").problem,
              HasSubstr("\"image_name\""));
  EXPECT_THAT(read_document(R"({"text_list": ["One.", null]})").problem, HasSubstr("entry 2"));
}

TEST(Document, ListsOfBlocks) {
  EXPECT_EQ(describe_document(
                read_document(R"({"document": [{"type": "text", "text": "One."}, {"type": "image", "image": "a.jpg"},
                                           {"type": "image_url", "image_url": {"url": "b.jpg"}}, "Two.",
                                           {"type": "video", "video": "v.mp4"}]})")),
            "One.[/data/a.jpg][/data/b.jpg]Two.[/data/v.mp4]");
  EXPECT_EQ(describe_document(read_document(
                R"({"document": [{"type": "image"}, "One.", {"type": "image"}], "images": ["a.jpg", "b.jpg"]})")),
            "[/data/a.jpg]One.[/data/b.jpg]");
  EXPECT_THAT(read_document(R"({"document": [{"type": "audio", "audio": "a.wav"}, "One."]})").problem,
              HasSubstr("\"audio\""));
  EXPECT_EQ(describe_document(read_document(R"({"document": [{"type": "text", "text": "One.", "loss": 0.5}]})",
                                            {.ignore_keys = {"loss"}})),
            "One.");
  EXPECT_FALSE(read_document(R"({"document": "A text.", "question": "Q", "answer": "A"})").is_document());
}

TEST(Document, EmptyTextsAreProblems) {
  for (const char* record : {R"({"text": ""})", R"({"text": " \n"})", R"({"document": []})", R"({"text_list": [""]})",
                             R"({"document": [{"type": "image", "image": "a.jpg"}]})"}) {
    EXPECT_THAT(read_document(record).problem, HasSubstr("no text to learn")) << record;
  }
  EXPECT_THAT(read_document(R"({"text": null})").problem, HasSubstr("\"text\""));
  EXPECT_THAT(read_document(R"({"text": 7})").problem, HasSubstr("not a string"));
}

TEST(Document, TurnsPrecedeATextAndTheTextIsReported) {
  const Record record =
      read_document(R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}],
                                 "text": "Q A"})");
  EXPECT_EQ(record.problem, "");
  EXPECT_FALSE(record.is_document());
  EXPECT_THAT(record.notices, ElementsAre(testing::Field(&Notice::kind, "key \"text\" of a record")));
  EXPECT_EQ(describe_document(read_document(R"({"messages": [], "caption": "", "text": "A text."})")), "A text.")
      << "blank columns of a table";
  EXPECT_EQ(describe_document(read_document(R"({"output": "O", "text": "A text."})")), "A text.");
  EXPECT_FALSE(read_document(R"({"instruction": "I", "output": "O", "text": "A text."})").is_document());
}

TEST(Document, AmbiguousDocumentsAreProblems) {
  EXPECT_THAT(read_document(R"({"text": "A.", "document": ["B."]})").problem,
              AllOf(HasSubstr("\"text\""), HasSubstr("data.ignore_keys=[document]")));
  EXPECT_EQ(describe_document(read_document(R"({"text": "", "document": ["B."]})")), "B.");
  for (const char* key : {"system", "tools", "chat_template_kwargs"}) {
    const std::string record = fmt::format(R"({{"text": "A.", "{}": [{{"name": "f"}}]}})", key);
    EXPECT_THAT(read_document(record).problem, HasSubstr(fmt::format("data.ignore_keys=[{}]", key)));
    EXPECT_EQ(describe_document(read_document(record, {.ignore_keys = {key}})), "A.");
  }
}

TEST(Document, OtherUnreadKeysAreCheckedAsInConversations) {
  EXPECT_THAT(read_document(R"({"text": "A.", "loss_mask": [1, 0]})").problem, HasSubstr("\"loss_mask\""));
  EXPECT_THAT(read_document(R"({"text": "A.", "image_path": "a.jpg"})").problem, HasSubstr("\"image_path\""));
  EXPECT_THAT(read_document(R"({"text": "A.", "audio": "a.wav"})").problem, HasSubstr("\"audio\""));
}

TEST(Document, ColumnsMapTexts) {
  EXPECT_EQ(describe_document(
                read_document(R"({"content": "A.", "text": "B.", "messages": [{"role": "user", "content": "Q"}]})",
                              {.columns = {{"text", "content"}}})),
            "A.");
  EXPECT_EQ(describe_document(
                read_document(R"({"blocks": ["A.", {"image": "a.jpg"}]})", {.columns = {{"document", "blocks"}}})),
            "A.[/data/a.jpg]");
  EXPECT_THAT(read_document(R"({"body": "A.", "chat": [{"role": "user", "content": "Q"}]})",
                            {.columns = {{"text", "body"}, {"messages", "chat"}}})
                  .problem,
              AllOf(HasSubstr("\"text\""), HasSubstr("\"messages\"")));
  const Record turns = read_document(R"({"text": "B.", "prompt": "Q", "label": "A"})",
                                     {.columns = {{"question", "prompt"}, {"answer", "label"}}});
  EXPECT_EQ(turns.problem, "");
  EXPECT_FALSE(turns.is_document());
}

TEST(Document, MasksAreRead) {
  const Record record = read_document(R"({"text": "A mask.", "image": "a.jpg", "mask": "m.png"})");
  EXPECT_EQ(describe_document(record), "[/data/a.jpg]A mask.");
  EXPECT_EQ(record.masks.size(), 1U);
}

TEST(TextWindows, CoverADocumentWithOneSharedToken) {
  EXPECT_EQ(count_text_windows(1, 4), 1);
  EXPECT_EQ(count_text_windows(4, 4), 1);
  EXPECT_EQ(count_text_windows(5, 4), 2);
  EXPECT_EQ(count_text_windows(7, 4), 2);
  EXPECT_EQ(count_text_windows(8, 4), 3);
  for (int64_t tokens = 1; tokens < 40; ++tokens) {
    for (int64_t size = 2; size < 12; ++size) {
      const int64_t last = count_text_windows(tokens, size) - 1;
      const TextWindow window{.index = last, .tokens = size};
      const int64_t remaining = tokens - window.first_token();
      EXPECT_LE(remaining, size) << tokens << " " << size;
      EXPECT_GE(remaining, last > 0 ? 2 : 1) << tokens << " " << size << ": a token to learn besides the shared one";
    }
  }
}

}  // namespace
}  // namespace vlmtrain::io
