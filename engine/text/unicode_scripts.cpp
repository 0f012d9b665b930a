#include "engine/text/unicode_scripts.h"

#include <sstream>
#include <vector>

namespace smartkv {
namespace {

// The scripts of Unicode 9, which the library supports, except Common, Han, Hiragana and Katakana.
constexpr const char* kScripts =
    "Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki "
    "Bopomofo Brahmi "
    "Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Coptic Cuneiform "
    "Cypriot Cyrillic "
    "Deseret Devanagari Duployan Egyptian_Hieroglyphs Elbasan Ethiopic Georgian Glagolitic Gothic Grantha Greek "
    "Gujarati Gurmukhi "
    "Hangul Hanunoo Hatran Hebrew Imperial_Aramaic Inherited Inscriptional_Pahlavi Inscriptional_Parthian Javanese "
    "Kaithi Kannada "
    "Kayah_Li Kharoshthi Khmer Khojki Khudawadi Lao Latin Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani "
    "Malayalam "
    "Mandaic Manichaean Marchen Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian "
    "Mro Multani "
    "Myanmar Nabataean New_Tai_Lue Newa Nko Ogham Ol_Chiki Old_Hungarian Old_Italic Old_North_Arabian Old_Permic "
    "Old_Persian "
    "Old_South_Arabian Old_Turkic Oriya Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician "
    "Psalter_Pahlavi Rejang "
    "Runic Samaritan Saurashtra Sharada Shavian Siddham SignWriting Sinhala Sora_Sompeng Sundanese Syloti_Nagri Syriac "
    "Tagalog "
    "Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tamil Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Ugaritic Vai "
    "Warang_Citi Yi";

}  // namespace

std::string one_script_expression() {
  std::vector<std::string> classes = {R"([\p{Common}&&[^ \x{30fc}]])", R"(\p{Han}\p{Hiragana}\p{Katakana}\x{30fc})"};
  std::istringstream names(kScripts);
  for (std::string name; names >> name;) classes.push_back("\\p{" + name + "}");
  std::string known;
  for (const std::string& one : classes) known += one;
  std::string expression = "(?:";
  for (const std::string& one : classes) expression += "[" + one + "][" + one + "[^" + known + "]]*|";
  expression.back() = ')';
  return expression;
}

}  // namespace smartkv
