// Scores of generated text against a reference, from 0 to 1, each exactly as the Python code that defines it: LongBench's metrics.py with
// the packages rouge 1.0.1 and fuzzywuzzy 0.18.0, and RULER's string match.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cyfa::eval {

// F1 of the words, after lower case, without ASCII punctuation and without the words a, an and the. The overlap counts repeated words.
double qa_f1(std::string_view prediction, std::string_view answer);

// The F of ROUGE-L, on sets of words: sentences end at dots, and the words of one longest common subsequence of each pair of sentences are
// added to one set. 0 where the package fails: without a sentence, and for a pair so long that its recursion is too deep for Python.
double rouge_l(std::string_view prediction, std::string_view answer);

// Similarity of the answer and the first line of the prediction that holds no "`", "#" or "//": fuzz.ratio without python-Levenshtein, that
// is, difflib's ratio rounded to hundredths.
double code_similarity(std::string_view prediction, std::string_view answer);

// 1 / number of classes that the prediction names if `answer` is among them, else 0. Other classes that are parts of the answer are taken
// out first, as the definition does it: while it walks the list, so that the one after a removed class is passed over.
double classification(std::string_view prediction, std::string_view answer, std::span<const std::string> classes);

// The share of the numbers in the prediction that equal the answer.
double count_match(std::string_view prediction, std::string_view answer);
// The same for the number after "Paragraph " in the answer. Throws std::invalid_argument if there is none.
double paragraph_match(std::string_view prediction, std::string_view answer);

// A prediction as RULER scores it: control characters are line ends, and there is no white space around it.
std::string ruler_prediction(std::string_view generated);
// Whether `part` occurs in `text`, ignoring case.
bool occurs(std::string_view part, std::string_view text);

// difflib.SequenceMatcher(None, a, b).ratio()
double difflib_ratio(std::u32string_view a, std::u32string_view b);

}  // namespace cyfa::eval
