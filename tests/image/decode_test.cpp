#include <sys/stat.h>
#include <zlib.h>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>
#include <thread>

#include "image/codec/header.h"
#include "image/codec/orientation.h"
#include "image/reference_files.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/video.h"

namespace vlmtrain::image {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

void write_bytes(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

std::filesystem::path make_temp_path(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) / name;
}

/// Returns a PNG that consists of a header with a size.
std::vector<std::byte> make_png_header(uint32_t width, uint32_t height) {
  std::vector<std::byte> bytes = read_test_bytes(kImageData / "rgb.png");
  for (int i = 0; i < 4; ++i) {
    bytes[16 + i] = static_cast<std::byte>(width >> (24 - 8 * i));
    bytes[20 + i] = static_cast<std::byte>(height >> (24 - 8 * i));
  }
  return bytes;
}

TEST(Decode, IsBitEqualToPillow) {
  const std::vector<std::byte> expected = read_test_bytes(kImageData / "decoded.bin");
  const nlohmann::json cases = read_test_json(kImageData / "decode.json");
  ASSERT_GT(cases.size(), 30U);
  for (const auto& entry : cases) {
    SCOPED_TRACE(entry.at("file").get<std::string>());
    const at::Tensor image = decode_image(kImageData / entry.at("file").get<std::string>());
    ASSERT_EQ(image.sizes().vec(), (std::vector<int64_t>{3, entry.at("height"), entry.at("width")}));
    const std::byte* reference = expected.data() + entry.at("offset").get<size_t>();
    EXPECT_EQ(find_first_difference(to_bytes(image), reference, image.nbytes()), -1);
  }
}

TEST(EncodePng, IsLossless) {
  const at::Tensor image = decode_image(kImageData / "rgb.png");
  const std::string encoded = encode_png(image);
  EXPECT_TRUE(at::equal(decode_image(std::as_bytes(std::span(encoded)), "encoded"), image));
}

TEST(Decode, HeaderGivesTheSizeOfTheUprightImage) {
  for (const auto& entry : read_test_json(kImageData / "decode.json")) {
    SCOPED_TRACE(entry.at("file").get<std::string>());
    const ImageSize size = read_image_size(kImageData / entry.at("file").get<std::string>());
    EXPECT_EQ(size, (ImageSize{entry.at("height"), entry.at("width")}));
  }
}

TEST(Decode, SixteenBitGrayKeepsTheUpperByte) {
  const at::Tensor image = decode_image(kImageData / "grey_16_bit.png");
  ASSERT_EQ(image.numel(), 3 * 64);
  const uint8_t* values = image.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < image.numel(); ++i) EXPECT_EQ(values[i], i % 64 * 4) << i;
}

TEST(Decode, BlendsTransparencyOnWhite) {
  // The first pixel's alpha is 0.
  const at::Tensor image = decode_image(kImageData / "rgba.png");
  for (int64_t channel = 0; channel < 3; ++channel) EXPECT_EQ(image[channel][0][0].item<int>(), 255);
}

/// A truncated file is rejected, and no byte of the image is ever invented. The last bytes hold no
/// pixels (an end marker, a checksum, padding): without them, decoding may fail or must give the
/// correct pixels.
TEST(Decode, RejectsTruncatedFiles) {
  for (const std::string name :
       {"rgb.jpg", "progressive.jpg", "restarts.jpg", "cmyk.jpg", "rgb.png", "interlaced.png", "palette_4.png",
        "rgb.webp", "lossless.webp", "alpha.webp", "tiff_heif/rgb.tif", "tiff_heif/jpeg.tif", "tiff_heif/tiled.tif",
        "tiff_heif/lzw.tif", "tiff_heif/group4.tif", "tiff_heif/rgba.heic", "tiff_heif/rgba.avif"}) {
    const std::vector<std::byte> content = read_test_bytes(kImageData / name);
    const std::vector<std::byte> pixels = to_bytes(decode_image(content, name));
    constexpr size_t kTailBytes = 24;
    for (size_t size = 0; size < content.size(); ++size) {
      try {
        const at::Tensor image = decode_image(std::span(content).first(size), name);
        EXPECT_GE(size + kTailBytes, content.size()) << name << " cut to " << size;
        EXPECT_EQ(to_bytes(image), pixels) << name << " cut to " << size;
      } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kBadData);
        EXPECT_THAT(error.what(), HasSubstr(name));
      }
    }
  }
}

TEST(Decode, ErrorsNameTheReason) {
  std::vector<std::byte> jpeg = read_test_bytes(kImageData / "rgb.jpg");
  jpeg.resize(jpeg.size() * 3 / 4);
  EXPECT_THAT([&] { decode_image(jpeg, "scan.jpg"); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("scan.jpg"), HasSubstr("Premature end"))));
  std::vector<std::byte> png = read_test_bytes(kImageData / "rgb.png");
  png[png.size() / 2] ^= std::byte{0x10};
  EXPECT_THAT([&] { decode_image(png, "scan.png"); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("scan.png"), HasSubstr("IDAT"))));
  const std::string gif = "GIF89a and so on";
  EXPECT_THAT([&] { decode_image(std::as_bytes(std::span(gif)), "scan.gif"); },
              ThrowsMessage<UserError>(HasSubstr("not a JPEG, PNG, WebP, TIFF, HEIC or AVIF image but GIF")));
  EXPECT_THAT([] { decode_image("no/such/picture.png"); }, ThrowsMessage<UserError>(HasSubstr("no/such/picture.png")));
  EXPECT_THAT([] { read_image_size("no/such/picture.png"); },
              ThrowsMessage<UserError>(HasSubstr("cannot open the image")));
}

TEST(Decode, RejectsATruncatedJpegWithAnEndMarker) {
  std::vector<std::byte> jpeg = read_test_bytes(kImageData / "rgb.jpg");
  jpeg.resize(jpeg.size() * 3 / 4);
  jpeg.insert(jpeg.end(), {std::byte{0xFF}, std::byte{0xD9}});
  EXPECT_THROW(decode_image(jpeg, "scan.jpg"), UserError);
}

TEST(Decode, RejectsDecompressionBombs) {
  const std::filesystem::path path = make_temp_path("bomb.png");
  write_bytes(path, make_png_header(100'000, 100'000));
  EXPECT_THAT([&] { read_image_size(path); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("100000 x 100000"), HasSubstr("shrink"))));
  EXPECT_THROW(decode_image(path), UserError);
  write_bytes(path, make_png_header(0, 5));
  EXPECT_THROW(read_image_size(path), UserError);
}

/// tests/image/data/SOURCES.md
TEST(Decode, OrientationMatchesPillow) {
  const std::filesystem::path folder = kImageData / "orientations";
  const nlohmann::json cases = read_test_json(folder / "orientations.json").at("cases");
  ASSERT_GT(cases.size(), 35U);
  for (const auto& [name, value] : cases.items()) {
    FileByteSource source(folder / name);
    EXPECT_EQ(static_cast<int>(read_header(source, name).orientation), value.get<int>()) << name;
  }
}

TEST(Decode, IgnoresMetadataThatInflatesWithoutEnd) {
  // "XML:com.adobe.xmp", compressed: 64 MB of spaces, then an orientation.
  std::string text(64 << 20, ' ');
  text += "tiff:Orientation=\"6\"";
  std::vector<uint8_t> compressed(compressBound(text.size()));
  uLongf size = compressed.size();
  ASSERT_EQ(compress(compressed.data(), &size, reinterpret_cast<const Bytef*>(text.data()), text.size()), Z_OK);
  const std::string_view key("XML:com.adobe.xmp\0\0", 19);
  std::vector<uint8_t> chunk(key.begin(), key.end());
  chunk.insert(chunk.end(), compressed.begin(), compressed.begin() + static_cast<std::ptrdiff_t>(size));
  PngMetadata metadata;
  metadata.add("zTXt", chunk);
  EXPECT_EQ(metadata.resolve_orientation(), Orientation::kUpright);
}

// Found by the fuzz target `image`, whose sanitizer stopped at memcpy's null pointer.
TEST(Decode, IgnoresAnEmptyExifChunk) {
  const std::vector<std::byte> content = read_test_bytes(kImageData / "rgb.png");
  constexpr std::ptrdiff_t kAfterIhdr = 33;
  constexpr uint8_t kChunk[] = {0, 0, 0, 0, 'e', 'X', 'I', 'f'};
  std::vector<uint8_t> chunk(std::begin(kChunk), std::end(kChunk));
  const uLong checksum = crc32(0, chunk.data() + 4, 4);
  for (const int shift : {24, 16, 8, 0}) chunk.push_back(static_cast<uint8_t>(checksum >> shift));
  std::vector<std::byte> with_exif(content.begin(), content.begin() + kAfterIhdr);
  for (const uint8_t byte : chunk) with_exif.push_back(std::byte{byte});
  with_exif.insert(with_exif.end(), content.begin() + kAfterIhdr, content.end());
  EXPECT_TRUE(decode_image(with_exif, "empty.png").equal(decode_image(content, "rgb.png")));
}

TEST(Decode, RejectsAJpegOfThousandsOfScans) {
  const std::vector<std::byte> content = read_test_bytes(kImageData / "progressive.jpg");
  // The first scan, over and over: it alone does not build on those before it.
  const auto is_marker = [&](size_t at, auto matches) {
    return content[at] == std::byte{0xFF} && matches(std::to_integer<int>(content[at + 1]));
  };
  size_t begin = 0;
  while (!is_marker(begin, [](int marker) { return marker == 0xDA; })) ++begin;
  size_t end = begin + 2;
  while (!is_marker(end, [](int marker) { return marker == 0xC4 || marker == 0xDA; })) ++end;
  const auto first = content.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto last = content.begin() + static_cast<std::ptrdiff_t>(end);
  std::vector<std::byte> bomb(content.begin(), last);
  for (int i = 0; i < 500; ++i) bomb.insert(bomb.end(), first, last);
  bomb.insert(bomb.end(), last, content.end());
  EXPECT_THAT([&] { decode_image(bomb, "bomb.jpg"); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("bomb.jpg"), HasSubstr("scan"), HasSubstr("101"))));
}

/// A changed byte gives an image or a data error. The sanitizer build checks memory accesses.
TEST(Decode, DamagedFilesGiveAnImageOrADataError) {
  for (const std::string name : {"orientation_6.jpg", "progressive.jpg", "palette_alpha.png", "orientation_8.png",
                                 "orientation_6.webp", "alpha.webp", "tiff_heif/jpeg.tif", "tiff_heif/tiled_planar.tif",
                                 "tiff_heif/palette_4_bit.tif", "tiff_heif/group4.tif", "tiff_heif/zstd.tif",
                                 "tiff_heif/orientation_6.heic", "tiff_heif/rgba.heic", "tiff_heif/rgba.avif"}) {
    const std::vector<std::byte> content = read_test_bytes(kImageData / name);
    for (size_t i = 0; i < content.size(); i += 3) {
      std::vector<std::byte> damaged = content;
      damaged[i] ^= std::byte{0xFF};
      try {
        EXPECT_EQ(decode_image(damaged, name).size(0), 3);
      } catch (const UserError& error) {
        EXPECT_EQ(error.code(), ExitCode::kBadData) << error.what();
      }
    }
  }
}

TEST(Decode, IsThreadSafe) {
  const std::vector<std::byte> valid = read_test_bytes(kImageData / "rgb.jpg");
  std::vector<std::byte> truncated = valid;
  truncated.resize(truncated.size() / 2);
  const std::vector<std::byte> pixels = to_bytes(decode_image(valid, "good"));
  std::vector<std::jthread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        EXPECT_THROW(decode_image(truncated, "bad"), UserError);
        EXPECT_EQ(to_bytes(decode_image(valid, "good")), pixels);
      }
    });
  }
}

TEST(Decode, RejectsNonFilesWithoutOpeningThem) {
  const auto pipe = make_temp_path("pipe.png");
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);  // who opens it waits for ever
  const auto reports_kind = [](const char* expected_kind) {
    return ThrowsMessage<UserError>(AllOf(HasSubstr("cannot open the image"), HasSubstr(expected_kind)));
  };
  EXPECT_THAT([&] { decode_image(pipe); }, reports_kind("it is a named pipe"));
  EXPECT_THAT([&] { read_image_size(pipe); }, reports_kind("it is a named pipe"));
  EXPECT_THAT([&] { decode_image("/dev/zero"); }, reports_kind("it is a device"));
  EXPECT_THAT([&] { decode_image(testing::TempDir()); }, reports_kind("it is a folder"));
  EXPECT_THAT([&] { VideoFile video(pipe); }, ThrowsMessage<UserError>(HasSubstr("it is a named pipe")));
  std::filesystem::remove(pipe);
}

}  // namespace
}  // namespace vlmtrain::image
