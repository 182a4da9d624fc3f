#include "vlmtrain/image/mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "image/mask_rows.h"
#include "image/reference_files.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/image_file.h"

namespace vlmtrain::image {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::filesystem::path kMasks = kImageData / "masks";

json load_goldens(const char* kind) {
  return read_test_json(kMasks / "masks.json").at(kind);
}

io::MediaRef make_truncated_media(const std::string& name, size_t size) {
  const std::vector<std::byte> bytes = read_test_bytes(kMasks / name);
  io::MediaRef medium(name);
  medium.bytes = std::make_shared<const std::string>(reinterpret_cast<const char*>(bytes.data()), size);
  return medium;
}

auto reports(const char* expected, const char* more_expected = "") {
  return ThrowsMessage<UserError>(AllOf(HasSubstr(expected), HasSubstr(more_expected)));
}

Rle parse(const char* text) {
  return parse_rle(json::parse(text));
}

TEST(Mask, MatchesThePng) {
  const json cases = load_goldens("files");
  ASSERT_GT(cases.size(), 50U);
  for (const json& entry : cases) {
    SCOPED_TRACE(entry.at("file").dump() + " of value " + entry.at("value").dump());
    const std::filesystem::path path = kMasks / entry.at("file").get<std::string>();
    const json& value = entry.at("value");
    const at::Tensor mask = decode_mask(path, value.is_null() ? std::nullopt : std::optional(value.get<int64_t>()));
    EXPECT_EQ(to_rows(mask), entry.at("mask").get<std::vector<std::string>>());
    EXPECT_TRUE(mask.is_contiguous());
    EXPECT_EQ(read_image_size(path), (ImageSize{mask.size(0), mask.size(1)}));
    EXPECT_EQ(read_mask_size(path, {}), (ImageSize{mask.size(0), mask.size(1)}));
  }
}

TEST(Mask, BytesGiveTheSameMaskAsTheFile) {
  const io::MediaRef medium = make_truncated_media("grey.png", read_test_bytes(kMasks / "grey.png").size());
  EXPECT_TRUE(at::equal(decode_mask(medium, 254), decode_mask(kMasks / "grey.png", 254)));
}

TEST(Mask, RejectsAShapeInTheAlphaChannel) {
  // White everywhere, and a square in the alpha channel.
  EXPECT_THAT([] { decode_mask(kMasks / "shape_in_alpha.png", {}); },
              reports("a shape only in its alpha channel", "alpha channel as a grayscale image"));
}

TEST(Mask, IsRotatedLikeItsImage) {
  const at::Tensor image = decode_image(kMasks / "orientation_6.png");
  EXPECT_TRUE(at::equal(decode_mask(kMasks / "orientation_6.png", 255), image[0].eq(255).to(at::kByte)));
}

TEST(Mask, RejectsOtherFormats) {
  EXPECT_THAT([] { decode_mask(kMasks / "lossy.jpg", {}); }, reports("JPEG", "save the mask as PNG"));
  EXPECT_THAT([] { decode_mask(kMasks / "lossless.webp", {}); }, reports("WebP", "convert the mask to PNG"));
  EXPECT_THAT([] { decode_mask(kMasks / "SOURCES.md", {}); }, reports("not a JPEG, PNG, WebP, TIFF, HEIC or AVIF"));
  EXPECT_THAT([] { decode_mask("no/such/mask.png", {}); }, reports("no/such/mask.png", "cannot open the image"));
}

TEST(Mask, RejectsImpossibleValues) {
  EXPECT_THAT([] { decode_mask(kMasks / "bilevel.png", 255); },
              reports("value 255", "1 bits per pixel, values from 0 to 1"));
  EXPECT_THAT([] { decode_mask(kMasks / "grey.png", 256); }, reports("value 256", "0 to 255"));
  EXPECT_THAT([] { decode_mask(kMasks / "grey.png", -1); }, reports("value -1"));
  EXPECT_THAT([] { decode_mask(kMasks / "grey_16_bit.png", 65536); }, reports("0 to 65535"));
  EXPECT_THAT([] { decode_mask(kMasks / "rgb.png", 1); }, reports("value 1", "RGB"));
}

/// Errors that the first bytes reveal are reported without decoding.
TEST(Mask, HeaderErrorsAreReportedEarly) {
  EXPECT_THAT([] { read_mask_size(kMasks / "lossy.jpg", {}); }, reports("JPEG", "save the mask as PNG"));
  EXPECT_THAT([] { read_mask_size(kMasks / "bilevel.png", 255); }, reports("value 255", "values from 0 to 1"));
  EXPECT_THAT([] { read_mask_size(kMasks / "rgb.png", 1); }, reports("value 1", "RGB"));
  EXPECT_EQ(read_mask_size(kMasks / "palette_4.png", 15), read_image_size(kMasks / "palette_4.png"));
  EXPECT_EQ(read_mask_size(kMasks / "grey_alpha.png", 254), read_image_size(kMasks / "grey_alpha.png"));
}

TEST(Mask, RejectsTruncatedFiles) {
  const size_t content = read_test_bytes(kMasks / "palette_8.png").size();
  const std::vector<std::string> rows = to_rows(decode_mask(kMasks / "palette_8.png", {}));
  constexpr size_t kTail = 24;  // a checksum and the end marker
  for (size_t size = 0; size + kTail < content; ++size) {
    EXPECT_THROW(decode_mask(make_truncated_media("palette_8.png", size), {}), UserError) << size;
  }
}

/// A changed byte gives a mask of the size in the header or a data error.
TEST(Mask, DamagedFilesGiveAMaskOrADataError) {
  for (const char* name : {"grey_4_bit.png", "grey_16_bit.png", "palette_interlaced.png", "rgba.png"}) {
    const io::MediaRef content = make_truncated_media(name, read_test_bytes(kMasks / name).size());
    for (size_t i = 0; i < content.bytes->size(); ++i) {
      std::string damaged = *content.bytes;
      damaged[i] = static_cast<char>(~damaged[i]);
      io::MediaRef medium(name);
      medium.bytes = std::make_shared<const std::string>(damaged);
      try {
        const at::Tensor mask = decode_mask(medium, {});
        EXPECT_EQ(read_image_size(medium), (ImageSize{mask.size(0), mask.size(1)}));
      } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kBadData) << error.what();
      }
    }
  }
}

TEST(Rle, MatchesPycocotools) {
  for (const json& entry : load_goldens("rles")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const auto& size = entry.at("size");
    const Rle rle = parse_rle({{"size", size}, {"counts", entry.at("counts")}});
    EXPECT_EQ(parse_rle({{"size", size}, {"counts", entry.at("string")}}), rle);
    EXPECT_EQ(encode_rle_counts(rle), entry.at("string").get<std::string>());
    const at::Tensor mask = decode_rle(rle);
    EXPECT_EQ(mask.sizes().vec(), size.get<std::vector<int64_t>>());
    EXPECT_EQ(compute_crc32(mask), entry.at("crc32"));
    if (entry.contains("mask")) {
      EXPECT_EQ(to_rows(mask), entry.at("mask").get<std::vector<std::string>>());
    }
    EXPECT_EQ(encode_rle(mask), rle);
    EXPECT_EQ(encode_rle(mask * 255), rle);
  }
}

TEST(Rle, AcceptsEmptyRuns) {
  EXPECT_EQ(to_rows(decode_rle(parse(R"({"size": [2, 2], "counts": [1, 0, 0, 2, 1]})"))),
            (std::vector<std::string>{"01", "10"}));
}

TEST(Rle, RejectsRunsThatDoNotFillTheMask) {
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": [5, 6]})"); }, reports("fill only 11", "4 x 3"));
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": [5, 8]})"); }, reports("fill 13 pixels", "has 12"));
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": []})"); }, reports("fill only 0"));
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": ""})"); }, reports("fill only 0"));
}

TEST(Rle, RejectsMalformedCounts) {
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": [13, -1]})"); }, reports("run 2", "negative length -1"));
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": [18446744073709551615]})"); }, reports("run 1", "limit"));
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": [1.5]})"); }, reports("1.5", "not a whole number"));
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": 12})"); }, reports("no \"counts\""));
  EXPECT_THAT([] { parse(R"({"size": [3, 4]})"); }, reports("no \"counts\""));
  EXPECT_THAT([] { parse(R"([[1, 2, 3, 4, 5, 6]])"); }, reports("polygons", "frPyObjects"));
  EXPECT_THAT([] { parse(R"("12")"); }, reports("not a JSON object"));
}

TEST(Rle, RejectsMalformedStrings) {
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": "5 7"})"); },
              reports("character \" \" at position 2", "pycocotools"));
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": "5p"})"); }, reports("character \"p\" at position 2"));
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": "5ü"})"); }, reports("at position 2"));
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": "5P"})"); }, reports("truncated"));
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": "oooooooo0"})"); }, reports("more than 7 characters"));
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": "O"})"); }, reports("run 1", "negative length -1"));
  // The fourth count is stored as the difference to the second.
  EXPECT_THAT([] { parse(R"({"size": [3, 4], "counts": "111N"})"); }, reports("run 4", "negative length -1"));
}

TEST(Rle, AnyStringGivesAMaskOrADataError) {
  std::mt19937 random(6);
  int num_parsed = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (unsigned i = 0; i <= random() % 4; ++i) text += static_cast<char>('0' + random() % (round % 2 == 0 ? 13 : 64));
    try {
      const Rle rle = parse_rle({{"size", {3, 4}}, {"counts", text}});
      EXPECT_EQ(decode_rle(rle).numel(), 12);
      EXPECT_EQ(parse_rle({{"size", {3, 4}}, {"counts", encode_rle_counts(rle)}}), rle);
      ++num_parsed;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData) << error.what();
    }
  }
  EXPECT_GT(num_parsed, 100);
}

TEST(Rle, RejectsInvalidSizes) {
  EXPECT_THAT([] { parse(R"({"counts": [12]})"); }, reports("no \"size\"", "add"));
  EXPECT_THAT([] { parse(R"({"size": [12], "counts": [12]})"); }, reports("no \"size\""));
  EXPECT_THAT([] { parse(R"({"size": [0, 4], "counts": []})"); }, reports("has 0", "at least 1"));
  EXPECT_THAT([] { parse(R"({"size": [-3, 4], "counts": [12]})"); }, reports("has -3"));
  EXPECT_THAT([] { parse(R"({"size": [3.0, 4], "counts": [12]})"); }, reports("has 3.0"));
  EXPECT_THAT([] { parse(R"({"size": [100000, 100000], "counts": [10000000000]})"); },
              reports("100000 x 100000", "shrink"));
  EXPECT_THAT([] { parse(R"({"size": [18446744073709551615, 2], "counts": [2]})"); }, reports("exceeds the limit"));
}

}  // namespace
}  // namespace vlmtrain::image
