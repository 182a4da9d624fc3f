#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/dataset/record_files.h"
#include "io/tar_writer.h"
#include "io/temporary_folder.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class TarRecords : public TemporaryFolderTest {
 protected:
  std::shared_ptr<const Records> open(const std::string& tar, const RecordSettings& settings = {}) const {
    return open_records(put("a.tar", tar), settings);
  }
  std::string get_error(const std::string& tar) const {
    return get_error_message([&] { open(tar); });
  }
};

constexpr std::string_view kTurns =
    R"("messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}])";

TEST_F(TarRecords, GroupsFilesByTheirKeys) {
  const auto records = open(TarWriter()
                                .add("d/", "", '5')
                                .add("d/a.json", fmt::format(R"({{"id": "x", {}}})", kTurns))
                                .add("d/a.10.jpg", "ten")
                                .add("d/a.2.JPG", "two")
                                .add("d/a.cls", "3")
                                .add("d/.hidden", "")
                                .add("b.txt", "A cat")
                                .add("b.png", "png")
                                .add("d/c.mp4", "film")
                                .add("d/c.json", R"({"question": "Q", "answer": "A"})")
                                .closed());
  ASSERT_EQ(records->size(), 3);
  const Record a = records->at(0);
  EXPECT_EQ(a.problem, "");
  EXPECT_EQ(a.id, "x");
  EXPECT_EQ(a.location, "files d/a.*");
  ASSERT_EQ(a.images.size(), 2);
  EXPECT_EQ(a.images[0].path, "d/a.2.JPG");
  EXPECT_EQ(*a.images[0].bytes, "two");
  EXPECT_EQ(*a.images[1].bytes, "ten");
  EXPECT_EQ(a.turns.at(0).text, "<image><image>\nQ");
  EXPECT_EQ(*records->at_without_media_bytes(0).images.at(0).bytes, "");
  EXPECT_EQ(records->at_without_media_bytes(0).turns.at(0).text, a.turns[0].text);

  const Record b = records->at(1);
  EXPECT_EQ(b.problem, "");
  EXPECT_EQ(b.id, "b");
  EXPECT_EQ(b.turns.at(0).text, "<image>");
  EXPECT_EQ(b.turns.at(1).text, "A cat");

  const Record c = records->at(2);
  EXPECT_EQ(c.problem, "");
  EXPECT_EQ(*c.videos.at(0).bytes, "film");
  EXPECT_EQ(c.turns.at(0).text, "<video>\nQ");
}

TEST_F(TarRecords, ReportsKeysThatAreNotRead) {
  const auto records = open(TarWriter()
                                .add("a.json", fmt::format(R"({{"tools": [1], {}}})", kTurns))
                                .add("b.json", fmt::format(R"({{"score": NaN, "quality": 2, {}}})", kTurns))
                                .add("b.png", "png")
                                .closed());
  EXPECT_THAT(records->at(0).problem, AllOf(HasSubstr("\"tools\""), HasSubstr("data.ignore_keys")));
  EXPECT_EQ(records->at(1).problem, "");
  ASSERT_EQ(records->at(1).notices.size(), 1);
  EXPECT_EQ(records->at(1).notices.front().kind, "key \"quality\" of a record");
}

TEST_F(TarRecords, JsonListsDefineTheOrder) {
  const auto read_listed = [&](std::string_view images) {
    return open(TarWriter()
                    .add("a.1.png", "one")
                    .add("a.2.png", "two")
                    .add("a.json", fmt::format(R"({{{} {}}})", images, kTurns))
                    .closed())
        ->at(0);
  };
  EXPECT_EQ(*read_listed(R"("images": ["x/a.2.png", "a.1.png"],)").images.at(0).bytes, "two");
  EXPECT_THAT(read_listed(R"("images": ["a.2.png"],)").problem, testing::HasSubstr("names 1 of the record's 2 files"));
  EXPECT_EQ(*read_listed(R"("image": "elsewhere.jpg",)").images.at(1).bytes, "two");
  EXPECT_EQ(read_listed(R"("image": null,)").images.size(), 2);
}

TEST_F(TarRecords, UnreadableMediaAreKept) {
  const auto read_member = [&](const std::string& member, char type) {
    return open(TarWriter().add(member, type == '0' ? "GIF89a" : "", type).add("a.txt", "words").closed())->at(0);
  };
  for (const char* name : {"a.gif", "a.TIFF", "a.bmp", "a.png.0"})
    EXPECT_EQ(read_member(name, '0').images.size(), 1U) << name;
  for (const char link : {'1', '2'}) {
    EXPECT_THAT(read_member("a.png", link).problem, testing::HasSubstr("its file a.png is a link"));
  }
}

TEST_F(TarRecords, ExtensionsAreCaseInsensitive) {
  const auto records = open(TarWriter()
                                .add("a.JSON", fmt::format("{{{}}}", kTurns))
                                .add("a.JPG", "one")
                                .add("b.jfif", "two")
                                .add("b.Json", fmt::format("{{{}}}", kTurns))
                                .add("c.JPE", "three")
                                .add("c.TXT", "words")
                                .closed());
  ASSERT_EQ(records->size(), 3);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(records->at(i).problem, "");
    EXPECT_EQ(records->at(i).images.size(), 1) << i;
    EXPECT_EQ(records->at(i).notices, std::vector<Notice>{});
  }
  EXPECT_EQ(records->at(2).turns.at(1).text, "words");
}

TEST_F(TarRecords, ImagesNamedLikeMasksAreMasks) {
  const auto read_record = [&](const std::vector<std::string>& names, const std::string& fields = "") {
    TarWriter tar;
    tar.add("d/a.png", "image").add("d/a.json", fmt::format("{{{}{}}}", fields, kTurns));
    for (const auto& name : names) tar.add("d/a." + name, name);
    return open(tar.closed())->at(0);
  };
  for (const char* name :
       {"mask.png", "seg.png", "liver_mask.0.PNG", "label.png", "mask.png.0", "Segmentation-2.jpg"}) {
    const Record record = read_record({name});
    EXPECT_EQ(record.problem, "") << name;
    EXPECT_EQ(record.images.size(), 1) << name;
    ASSERT_EQ(record.masks.size(), 1) << name;
    EXPECT_EQ(*record.masks[0].file.bytes, name);
    EXPECT_THAT(record.turns.at(0).text, testing::StartsWith("<image>\nQ"));
  }
  for (const char* name : {"left.png", "0.png", "masked.png", "segment.png", "rgb.jpg"}) {
    EXPECT_EQ(read_record({name}).images.size(), 2) << name;
    EXPECT_EQ(read_record({name}).masks.size(), 0) << name;
  }
  for (const char* name : {"thumb.jpg", "overlay.png", "mask.nii.gz"}) {
    const Record record = read_record({name});
    EXPECT_EQ(record.images.size(), 1) << name;
    EXPECT_THAT(record.notices, testing::ElementsAre(Notice{.kind = fmt::format("file \".{}\" of a record", name),
                                                            .example = fmt::format("d/a.{}", name)}));
  }
  EXPECT_EQ(read_record({"mask.png"}, R"("images": ["a.png", "a.mask.png"],)").images.size(), 2)
      << "its list contains it";
}

TEST_F(TarRecords, MasksKeepTheirJsonFields) {
  const auto read_record = [&](const std::string& masks) {
    return open(TarWriter()
                    .add("a.png", "image")
                    .add("a.mask.0.png", "zero")
                    .add("a.mask.1.png", "one")
                    .add("a.json", fmt::format(R"({{"masks": {}, {}}})", masks, kTurns))
                    .closed())
        ->at(0);
  };
  const Record named = read_record(R"([{"path": "x/a.mask.1.png", "structure": "liver", "value": 2}, "a.mask.0.png"])");
  EXPECT_EQ(named.mask_problem, "");
  ASSERT_EQ(named.masks.size(), 2);
  EXPECT_EQ(*named.masks[0].file.bytes, "one");
  EXPECT_EQ(named.masks[0].structure, "liver");
  EXPECT_EQ(named.masks[0].value, 2);
  EXPECT_EQ(*named.masks[1].file.bytes, "zero");
  EXPECT_EQ(read_record("null").masks.size(), 2);
  const Record other = read_record(R"([{"size": [1, 1], "counts": [1]}])");
  ASSERT_EQ(other.masks.size(), 1);
  EXPECT_TRUE(other.masks[0].rle);
  EXPECT_EQ(other.notices.at(0).kind, "mask file that the \"masks\" of its .json do not name");
}

TEST_F(TarRecords, FilesThatAreNotUsedAreReported) {
  const auto kinds = [&](const std::string& name, const RecordSettings& settings = {}) {
    const Record record = open(TarWriter()
                                   .add("a.png", "image")
                                   .add("a.json", fmt::format(R"({{"caption": "other", {}}})", kTurns))
                                   .add(name, "3")
                                   .closed(),
                               settings)
                              ->at(0);
    std::vector<std::string> all;
    for (const Notice& notice : record.notices) all.push_back(notice.kind);
    return record.problem.empty() ? fmt::format("{}", fmt::join(all, ", ")) : record.problem;
  };
  EXPECT_THAT(kinds("a.cls"), HasSubstr("file \".cls\" of a record"));
  EXPECT_THAT(kinds("a.npy"), HasSubstr("file \".npy\" of a record"));
  EXPECT_THAT(kinds("a.meta.json"), HasSubstr("file \".meta.json\" of a record"));
  EXPECT_THAT(kinds("a.question.txt"), HasSubstr("file \".question.txt\" of a record"));
  EXPECT_THAT(kinds("a.txt"), HasSubstr("file \".txt\" next to another \"caption\""));
  for (const char* audio : {"a.wav", "a.MP3", "a.0.flac"}) EXPECT_THAT(kinds(audio), HasSubstr("\"audio\""));
  for (const char* hidden : {"._a.png", ".DS_Store", "__MACOSX/._a.json", "readme"}) {
    EXPECT_THAT(kinds(hidden), testing::Not(HasSubstr("file"))) << hidden;
  }
}

TEST_F(TarRecords, RefusesGitLfsPointers) {
  constexpr std::string_view kPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n";
  for (const char* extension : {"json", "txt", "JSON"}) {
    const auto records = open(TarWriter().add(std::string("a.") + extension, kPointer).add("a.png", "1").closed());
    EXPECT_THAT(records->at(0).problem, HasSubstr(fmt::format("its .{} is a Git LFS pointer", extension)));
  }
}

TEST_F(TarRecords, AnyFileMayBeAColumn) {
  const auto tar =
      TarWriter()
          .add("a.png", "image")
          .add("a.CLS", "cat")
          .add("a.conv.json", fmt::format("[{}]", R"({"from": "human", "value": "Q"}, {"from": "gpt", "value": "B"})"))
          .closed();
  const Record classes = open(tar, {.columns = {{"caption", "cls"}}})->at(0);
  EXPECT_EQ(classes.turns.at(1).text, "cat");
  EXPECT_EQ(open(tar, {.columns = {{"messages", "conv.json"}}})->at(0).turns.at(1).text, "B");
}

TEST_F(TarRecords, NamesWithDotsAreNamedInTheProblem) {
  const auto problem = [&](const std::string& first, const std::string& second) {
    TarWriter tar;
    for (const auto& name : {first, second}) {
      tar.add(name + ".json", fmt::format("{{{}}}", kTurns)).add(name + ".png", "image");
    }
    const auto records = open(tar.closed());
    EXPECT_EQ(records->size(), 1);
    return records->at(0).problem;
  };
  for (const auto& [first, second] : {std::pair{"1.2.840.0", "1.2.840.1"}, std::pair{"d/scan.v2.0", "d/scan.v2.1"},
                                      std::pair{"x.jpg.a", "x.jpg.b"}}) {
    EXPECT_THAT(problem(first, second),
                AllOf(HasSubstr("up to the first dot, as in webdataset: "), HasSubstr(std::string(first) + ".json"),
                      HasSubstr("without other dots")));
  }
  const auto plain = open(TarWriter().add("a.json", "{}").add("a.0.png", "image").closed())->at(0);
  EXPECT_THAT(plain.problem, testing::Not(HasSubstr("first dot")));
}

TEST_F(TarRecords, ReadsLongNames) {
  const std::string folder(120, 'f');
  const auto records = open(TarWriter()
                                .add_long(folder + "/gnu.txt", "one")
                                .add_long(folder + "/gnu.png", "1")
                                .add_pax("path", folder + "/pax.txt", "short", "two")
                                .add_pax("path", folder + "/pax.png", "short", "2")
                                .add_pax("mtime", "3.5", "plain.txt", "three")
                                .add("plain.png", "3")
                                .add("ustar.txt", "four", '0', folder)
                                .add("ustar.png", "4", '0', folder)
                                .closed());
  ASSERT_EQ(records->size(), 4);
  for (const auto& [place, name] : {std::pair{0, "/gnu"}, std::pair{1, "/pax"}, std::pair{3, "/ustar"}}) {
    EXPECT_EQ(records->at(place).problem, "");
    EXPECT_EQ(records->at(place).id, folder + name);
  }
  EXPECT_EQ(records->at(2).id, "plain");
  EXPECT_EQ(records->at(3).turns.at(1).text, "four");
}

TEST_F(TarRecords, MapsExtensionsToFields) {
  const auto tar = TarWriter()
                       .add("a.left.png", "left")
                       .add("a.right.png", "right")
                       .add("a.q.txt", "Why?")
                       .add("a.txt", "Because")
                       .closed();
  const Record record =
      open(tar, {.columns = {{"question", "q.txt"}, {"answer", "txt"}, {"image", "right.png"}}})->at(0);
  EXPECT_EQ(record.problem, "");
  EXPECT_EQ(record.turns.at(0).text, "<image>\nWhy?");
  EXPECT_EQ(record.turns.at(1).text, "Because");
  ASSERT_EQ(record.images.size(), 1);
  EXPECT_EQ(*record.images[0].bytes, "right");
}

TEST_F(TarRecords, BadFilesAreProblemsOfTheirRecords) {
  TarWriter tar;
  tar.add("twice.txt", "A").add("twice.png", "1").add("twice.png", "2");
  tar.add("broken.json", "{\n1}").add("list.json", "[]").add("coded.txt", "\xFF").add("coded.png", "1");
  tar.add("sparse.png", "1", 'S').add_pax("GNU.sparse.major", "1", "pax.png", "1");
  tar.add("good.txt", "A").add("good.png", "1");
  tar.add("cut.txt", "A").add("cut.png", std::string(5000, 'x'));
  const auto records = open(tar.open().substr(0, tar.open().size() - 600));
  ASSERT_EQ(records->size(), 8);
  EXPECT_THAT(records->at(0).problem, HasSubstr("twice.png occurs twice in the tar"));
  EXPECT_THAT(records->at(1).problem, HasSubstr("its .json is not valid JSON at line 2, column 1"));
  EXPECT_EQ(records->at(1).id, "broken");
  EXPECT_THAT(records->at(2).problem, HasSubstr("not a JSON object"));
  EXPECT_THAT(records->at(3).problem, HasSubstr("its .txt is not valid UTF-8"));
  EXPECT_THAT(records->at(4).problem, HasSubstr("sparse.png is stored as a sparse file"));
  EXPECT_THAT(records->at(5).problem, HasSubstr("pax.png is stored as a sparse file"));
  EXPECT_EQ(records->at(6).problem, "");
  EXPECT_THAT(records->at(7).problem, HasSubstr("cut.png is truncated: the tar ends within it"));
}

TEST_F(TarRecords, RefusesDamagedTars) {
  TarWriter tar;
  tar.add("a.txt", "A").add("b.txt", "B");
  std::string damaged = tar.closed();
  damaged[1024] = 'x';
  EXPECT_THAT(get_error(damaged), AllOf(HasSubstr("a.tar"), HasSubstr("no member header at byte 1024")));
  EXPECT_THAT(get_error(tar.open().substr(0, 1200)), HasSubstr("ends within a header at byte 1024"));
  const std::string pax = TarWriter().add("pax", "99 path=a\n", 'x').closed();
  EXPECT_THAT(get_error(pax), HasSubstr("pax header that is damaged"));
  EXPECT_THAT(get_error(TarWriter().add("pax", "x", 'x').closed()), HasSubstr("pax header that is damaged"));
  TarWriter invalid_tar;
  invalid_tar.add_header("a.txt", "00000000009", '0');
  EXPECT_THAT(get_error(invalid_tar.closed()), HasSubstr("no member header"));
  TarWriter endless;
  endless.add_header("x", "77777777777", 'L');
  EXPECT_THAT(get_error(endless.closed()), HasSubstr("too long"));
  EXPECT_THAT(get_error("\x1F\x8B more"), HasSubstr("compressed with gzip; unpack it first"));
  EXPECT_EQ(open(tar.open())->size(), 2);
}

TEST_F(TarRecords, ReadsSizesInBinary) {
  TarWriter tar;
  const std::string_view three("\x80\0\0\0\0\0\0\0\0\0\0\3", 12);
  tar.add_header("a.txt", three, '0');
  const auto records = open(tar.open() + "abc" + std::string(509, '\0') + TarWriter().add("a.png", "1").closed());
  ASSERT_EQ(records->size(), 1);
  EXPECT_EQ(records->at(0).turns.at(1).text, "abc");
}

}  // namespace
}  // namespace vlmtrain::io
