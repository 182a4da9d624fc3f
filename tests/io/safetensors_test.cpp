#include "vlmtrain/io/safetensors.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstring>

#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::io {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Safetensors : public TemporaryFolderTest {
 protected:
  // Writes a file with this header and data bytes 0, 1, 2, ...
  fs::path write_raw_file(std::string_view header, size_t data_bytes, int64_t header_length = -1) const {
    const uint64_t length = header_length < 0 ? header.size() : static_cast<uint64_t>(header_length);
    std::string content(8, '\0');
    std::memcpy(content.data(), &length, 8);
    content += header;
    for (size_t i = 0; i < data_bytes; ++i) {
      content += static_cast<char>(i);
    }
    return put("forged.safetensors", content);
  }

  std::string get_error(std::string_view header, size_t data_bytes, int64_t header_length = -1) const {
    const fs::path path = write_raw_file(header, data_bytes, header_length);
    std::string message = get_error_message([&] { const SafetensorsFile file(path); });
    EXPECT_THAT(message, HasSubstr(path.string()));
    return message;
  }
};

TEST_F(Safetensors, RoundTripsEveryTypeAndStride) {
  NamedTensors tensors;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                                     at::kChar, at::kByte, at::kBool, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    tensors.emplace_back(c10::toString(dtype), at::arange(-5, 10, at::kFloat).reshape({3, 5}).to(dtype));
  }
  tensors.emplace_back("scalar", at::scalar_tensor(2.5));
  tensors.emplace_back("empty", at::empty({0, 4}));
  tensors.emplace_back("transposed", at::arange(6).reshape({2, 3}).t());
  tensors.emplace_back("strided", at::arange(20).slice(0, 1, 20, 3));
  tensors.emplace_back("trained", at::ones({2}).requires_grad_(true));
  const fs::path path = folder() / "a.safetensors";
  write_safetensors(path, tensors);

  const SafetensorsFile file(path);
  EXPECT_THAT(file.metadata(), ElementsAre(std::pair("format", "pt")));
  EXPECT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor read = file.tensor(name);
    ASSERT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    ASSERT_EQ(read.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(at::equal(read.to(at::kDouble), tensor.detach().to(at::kDouble))) << name;
    EXPECT_EQ(file.dtype(name), tensor.scalar_type());
    EXPECT_EQ(file.shape(name), tensor.sizes().vec());
  }
  EXPECT_THAT(entries(folder()), ElementsAre("a.safetensors"));
}

TEST_F(Safetensors, WritesTheDocumentedLayout) {
  const fs::path path = folder() / "a.safetensors";
  write_safetensors(path, {{"b", at::full({2}, 3, at::kByte)}, {"a", at::full({1}, 1, at::kInt)}}, {});
  const std::string content = read_contents(path);
  uint64_t length = 0;
  std::memcpy(&length, content.data(), 8);
  EXPECT_EQ(length % 8, 0);
  EXPECT_EQ(nlohmann::json::parse(content.substr(8, length)), nlohmann::json::parse(R"({
    "a": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]},
    "b": {"dtype": "U8", "shape": [2], "data_offsets": [4, 6]}})"));
  EXPECT_EQ(content.substr(8 + length), std::string("\1\0\0\0\3\3", 6));
}

TEST_F(Safetensors, MapsWithoutCopyAndNeverWritesBack) {
  const fs::path path = folder() / "a.safetensors";
  write_safetensors(path, {{"a", at::ones({4})}});
  const std::string before = read_contents(path);
  at::Tensor tensor;
  {
    const SafetensorsFile file(path);
    tensor = file.tensor("a");
    EXPECT_EQ(tensor.const_data_ptr(), file.tensor("a").const_data_ptr());
  }
  // The mapping outlives the file object and the name of the file.
  tensor.fill_(7);
  EXPECT_EQ(read_contents(path), before);
  fs::remove(path);
  EXPECT_TRUE(at::equal(tensor, at::full({4}, 7.0F)));
}

TEST_F(Safetensors, CopiesUnalignedData) {
  // The header is 59 bytes, so the data begins at byte 67.
  std::string header = R"({"a": {"dtype": "I32", "shape": [1], "data_offsets":[0,4]}})";
  ASSERT_EQ((8 + header.size()) % 4, 3);
  const SafetensorsFile file(write_raw_file(header, 4));
  const at::Tensor tensor = file.tensor("a");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 4, 0);
  EXPECT_EQ(tensor.item<int>(), 0x03020100);
}

TEST_F(Safetensors, AcceptsPaddingEmptyFilesAndAnyKeyOrder) {
  EXPECT_THAT(SafetensorsFile(write_raw_file("{}   ", 0)).names(), IsEmpty());
  const SafetensorsFile file(write_raw_file(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},
                                       "z":{"dtype":"U8","shape":[],"data_offsets":[0,1]},
                                       "e":{"dtype":"F32","shape":[0],"data_offsets":[1,1]}})",
                                            3));
  EXPECT_THAT(file.names(), ElementsAre("z", "e", "a"));
  EXPECT_EQ(file.tensor("z").dim(), 0);
  EXPECT_THAT(get_error_message([&] { file.tensor("none"); }), AllOf(HasSubstr("no tensor none"), HasSubstr("forged")));
  EXPECT_FALSE(file.contains("none"));
}

TEST_F(Safetensors, RefusesWrongLengths) {
  EXPECT_THAT(get_error("{}", 0, 3), HasSubstr("truncated"));
  EXPECT_THAT(get_error("{}", 0, 100'000'001), HasSubstr("not a safetensors file"));
  EXPECT_THAT(get_error("{}", 0, std::numeric_limits<int64_t>::max()), HasSubstr("not a safetensors file"));
  EXPECT_THAT(get_error("{}", 0, 1), HasSubstr("not valid JSON"));
  EXPECT_THAT(get_error("{]", 0), HasSubstr("line 1, column 2"));
  EXPECT_THAT(get_error("[]", 0), HasSubstr("not a JSON object"));
  const fs::path tiny = put("tiny", "1234567");
  EXPECT_THAT(get_error_message([&] { const SafetensorsFile file(tiny); }), HasSubstr("7 bytes are too few"));
  const fs::path empty = put("empty", "");
  EXPECT_THAT(get_error_message([&] { const SafetensorsFile file(empty); }), HasSubstr("0 bytes are too few"));
  const fs::path pointer = put("pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
  EXPECT_THAT(get_error_message([&] { const SafetensorsFile file(pointer); }), HasSubstr("git lfs pull"));
}

TEST_F(Safetensors, RefusesWrongTensors) {
  const auto make_header = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return fmt::format(R"({{"w":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  const auto get_tensor_error = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    std::string message = get_error(make_header(dtype, shape, offsets), 4);
    EXPECT_THAT(message, HasSubstr("tensor w"));
    return message;
  };
  EXPECT_THAT(get_tensor_error("F4", "[1]", "[0,4]"), HasSubstr("the type F4 of quantized weights"));
  EXPECT_THAT(get_tensor_error("C64", "[1]", "[0,4]"), HasSubstr("unknown type C64"));
  EXPECT_THAT(get_tensor_error("F32", "[2]", "[0,4]"), HasSubstr("takes 8 bytes, but its data_offsets span 4"));
  EXPECT_THAT(get_tensor_error("F32", "[-1]", "[0,4]"), HasSubstr("shape [-1] is invalid"));
  EXPECT_THAT(get_tensor_error("F32", "[4611686018427387904, 4]", "[0,0]"), HasSubstr("4] is invalid"));
  EXPECT_THAT(get_tensor_error("F32", "[0, 4611686018427387904, 4]", "[0,0]"), HasSubstr("4] is invalid"));
  EXPECT_THAT(get_tensor_error("F32", "[1.5]", "[0,4]"), HasSubstr("whole number"));
  EXPECT_THAT(get_tensor_error("F32", "[99999999999999999999]", "[0,4]"), HasSubstr("whole number"));
  EXPECT_THAT(get_tensor_error("F32", "1", "[0,4]"), HasSubstr("a list"));
  EXPECT_THAT(get_tensor_error("F32", "[1]", "[4,0]"), HasSubstr("not a valid begin and end"));
  EXPECT_THAT(get_tensor_error("F32", "[1]", "[-4,0]"), HasSubstr("not a valid begin and end"));
  EXPECT_THAT(get_tensor_error("F32", "[1]", "[0]"), HasSubstr("not a valid begin and end"));
  EXPECT_THAT(get_tensor_error("F32", "[2]", "[0,8]"), AllOf(HasSubstr("truncated"), HasSubstr("download")));
  EXPECT_THAT(get_tensor_error("F32", "[1]", "[9223372036854775803,9223372036854775807]"), HasSubstr("truncated"));
  EXPECT_THAT(get_error(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("\"dtype\" is missing"));
  EXPECT_THAT(get_error(R"({"w":3})", 4), HasSubstr("a JSON object"));
  EXPECT_THAT(get_error(R"({"__metadata__":{"format":1}})", 0), HasSubstr("must be a string"));
  EXPECT_THAT(get_error(R"({"__metadata__":[]})", 0), HasSubstr("__metadata__"));
}

TEST_F(Safetensors, RefusesDeepNesting) {
  const std::string deep = "{\"a\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  EXPECT_THAT(get_error(deep, 0), HasSubstr("more than 200 nested lists and objects"));
}

TEST_F(Safetensors, ShortensTensorNamesInErrors) {
  EXPECT_THAT(get_error(fmt::format(R"({{"{}": 5}})", std::string(100'000, 'x')), 0).size(), testing::Lt(800U));
}

TEST_F(Safetensors, RefusesOverlapsHolesAndDuplicates) {
  const auto get_pair_error = [&](const std::string& first, const std::string& second, const std::string& name = "b") {
    return get_error(fmt::format(R"({{"a":{{"dtype":"U8","shape":[2],"data_offsets":{}}},
                                    "{}":{{"dtype":"U8","shape":[2],"data_offsets":{}}}}})",
                                 first, name, second),
                     4);
  };
  EXPECT_THAT(get_pair_error("[0,2]", "[1,3]"), HasSubstr("tensor b overlaps"));
  EXPECT_THAT(get_pair_error("[0,2]", "[0,2]"), HasSubstr("tensor b overlaps"));
  EXPECT_THAT(get_pair_error("[1,3]", "[0,2]"), HasSubstr("tensor a overlaps"));
  EXPECT_THAT(get_pair_error("[0,2]", "[2,4]", "a"), HasSubstr("tensor a occurs twice"));
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})";
  EXPECT_THAT(get_error(header, 3), HasSubstr("tensor a leaves a gap"));
  EXPECT_THAT(get_error(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 5),
              HasSubstr("3 bytes after the last"));
}

TEST_F(Safetensors, RefusesToWriteDuplicatesAndUnknownTypes) {
  EXPECT_THROW(write_safetensors(folder() / "a", {{"x", at::ones(1)}, {"x", at::ones(1)}}), InternalError);
  EXPECT_THROW(write_safetensors(folder() / "a", {{"x", at::ones(1, at::kComplexFloat)}}), InternalError);
  EXPECT_THAT(entries(folder()), IsEmpty());
}

TEST_F(Safetensors, KeepsTheOldFileWhenTheDiskIsFull) {
  const fs::path path = folder() / "a.safetensors";
  write_safetensors(path, {{"a", at::ones({4})}});
  const std::string before = read_contents(path);
  const at::Tensor large = at::ones({4096});
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_safetensors(path, {{"a", large}});
    } catch (const UserError& error) {
      _exit(std::strstr(error.what(), "File too large") != nullptr && error.code() == ExitCode::kFailed ? 0 : 1);
    } catch (...) {
      _exit(2);
    }
    _exit(3);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(read_contents(path), before);
  EXPECT_THAT(entries(folder()), ElementsAre("a.safetensors"));
}

class OnDemandSafetensorsTest : public TemporaryFolderTest {
 protected:
  // The headers are smaller and larger than a page, and no size is a multiple of an alignment.
  std::filesystem::path put_tensors(int64_t count) const {
    NamedTensors tensors{{"none", at::empty({0, 3}, at::kFloat)}};
    for (int64_t i = 0; i < count; ++i) {
      const auto type = std::array{at::kFloat, at::kBFloat16, at::kByte, at::kLong}[static_cast<size_t>(i % 4)];
      tensors.emplace_back(fmt::format("tensor.{}", i), at::arange(1 + 1237 * i).to(type));
    }
    const auto file = folder() / fmt::format("{}.safetensors", count);
    write_safetensors(file, tensors);
    return file;
  }
};

TEST_F(OnDemandSafetensorsTest, MatchTheFile) {
  for (const int64_t count : {1, 5, 90}) {
    const auto path = put_tensors(count);
    const SafetensorsFile all_tensors(path);
    const OnDemandSafetensorsFile on_demand(path);
    ASSERT_EQ(on_demand.names(), all_tensors.names());
    for (const auto& name : all_tensors.names()) {
      EXPECT_EQ(on_demand.info(name).shape, all_tensors.shape(name));
      EXPECT_TRUE(at::equal(on_demand.tensor(name), all_tensors.tensor(name))) << name;
    }
    EXPECT_THROW(static_cast<void>(on_demand.tensor("other")), UserError);
  }
}

TEST_F(OnDemandSafetensorsTest, ReportsDamageLikeSafetensorsFile) {
  const auto get_error_message = [](const auto& open) -> std::string {
    try {
      open();
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing is wrong";
  };
  for (const uintmax_t bytes : {0U, 4U, 100U, 5000U}) {
    const auto path = put_tensors(90);
    std::filesystem::resize_file(path, bytes);
    EXPECT_EQ(get_error_message([&] { const OnDemandSafetensorsFile on_demand(path); }),
              get_error_message([&] { const SafetensorsFile file(path); }));
  }
}

}  // namespace
}  // namespace vlmtrain::io
