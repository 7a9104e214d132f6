// The text of GPUMEM_DEVICES: accepted and refused values, and the round trip.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpumem/settings.hpp"

namespace gpumem {
namespace {

using kind = device_choice::kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

device_choice read(std::string_view text) {
  const auto parsed = parse_devices(text);
  EXPECT_TRUE(parsed.ok()) << parsed.why().message();
  return *parsed;
}

TEST(DeviceChoice, ReadsEveryForm) {
  EXPECT_EQ(read("all").how, kind::all);
  EXPECT_EQ(read("").how, kind::none);
  EXPECT_EQ(read(" \t").how, kind::none);
  EXPECT_EQ(read("none").how, kind::none);
  EXPECT_EQ(read("auto").how, kind::automatic);
  EXPECT_EQ(read("auto").count, 1U);
  EXPECT_EQ(read("auto:4").count, 4U);
  EXPECT_THAT(read("0").names, ElementsAre("0"));
  EXPECT_THAT(read("0, 2").names, ElementsAre("0", "2"));
  EXPECT_THAT(read("GPU-8932f937,3,MIG-1c2d").names, ElementsAre("GPU-8932f937", "3", "MIG-1c2d"));
}

TEST(DeviceChoice, ReadsItsOwnText) {
  for (const char* text : {"none", "auto", "auto:3", "0", "2,0,GPU-8932f937-d72c"}) {
    EXPECT_EQ(read(text).to_string(), text);
  }
  EXPECT_EQ(device_choice{}.to_string(), "");
}

TEST(DeviceChoice, RefusesTheRestInOneLine) {
  for (const char* text :
       {"-1",        "0,-1",   "0,", ",0",    "0,,1", "x",    "auto:0", "auto:",   "auto:-1", "auto:2x",
        "auto:1025", "auto,1", "01", "12345", "GPU-", "MIG-", "GPU-\n", "\"0,1\"", "0;1",     "0 1"}) {
    const auto parsed = parse_devices(text, "GPUMEM_DEVICES");
    EXPECT_EQ(parsed.code(), errc::bad_setting) << text;
    EXPECT_THAT(parsed.why().message(), HasSubstr("GPUMEM_DEVICES=")) << text;
    EXPECT_THAT(parsed.why().message(), HasSubstr("expected ")) << text;
    EXPECT_EQ(parsed.why().message().find('\n'), std::string::npos) << text;
  }
  EXPECT_THAT(parse_devices("2,2").why().message(), HasSubstr("not 2 twice"));
}

TEST(DeviceChoice, AGroupHasAFileNameAndALimitWithoutShareOfFreeMemory) {
  settings s;
  EXPECT_TRUE(s.set("group", "lab-7").ok());
  EXPECT_TRUE(s.set("group", "").ok()) << "switches it off";
  for (const char* bad : {"a/b", "..", ".x", "a b", "gr\xc3\xbcn"}) EXPECT_FALSE(s.set("group", bad).ok()) << bad;
  EXPECT_FALSE(s.set("group", std::string(65, 'a')).ok());
  EXPECT_TRUE(s.set("group_limit", "30%").ok());
  EXPECT_THAT(s.set("group_limit", "30%free").message(), HasSubstr("expected bytes (4GiB) or a share of the device"));
}

}  // namespace
}  // namespace gpumem
