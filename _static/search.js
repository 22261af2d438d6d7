// Sphinx takes a result's summary from the text at its anchor, and fails on an anchor that holds none, as those of
// index entries may. Then the summary comes from the whole page.
if (typeof Search !== "undefined") {
  const atAnchor = Search.htmlToText;
  Search.htmlToText = (page, anchor) => atAnchor(page, anchor).trim() ? atAnchor(page, anchor) : atAnchor(page, "");
}
