// The operations log: who moved what, when.

import { ago, count, empty, fill, get, h, time } from "/static/dom.js";
import { PagedRows, VirtualList } from "/static/lists.js";

const WORDS = {
  RepoInitialized: "Repository created", RepoMigrated: "Repository migrated", ConfigChanged: "Configuration changed",
  MetadataChanged: "Metadata changed", TagCreated: "Tag created", TagDeleted: "Tag deleted", BranchCreated: "Branch created",
  BranchDeleted: "Branch deleted", BranchReset: "Branch reset", NewCommit: "Commit", CommitAmended: "Commit amended",
  NewDetachedSnapshot: "Snapshot without a branch", GCRan: "Garbage collected", ExpirationRan: "Snapshots expired",
  FeatureFlagChanged: "Feature flag changed", RepoStatusChanged: "Status changed", Unknown: "Unknown operation",
};

export async function operationsView(box, app) {
  const first = await get("operations", { offset: 0, limit: 200 });
  if (!first.supported) {
    fill(box, empty(h("h2", {}, "No operations log"), h("p", {}, "Only repositories of spec version 2 keep one.")));
    return {};
  }
  const list = new VirtualList({
    rows: new PagedRows("operations", {}, first), height: 30, label: "Operations, newest first",
    draw: (row) => h("div", { class: "operation" },
      h("time", { title: ago(row.time) }, time(row.time)),
      h("span", { class: `kind kind-${row.operation}` }, WORDS[row.operation] ?? row.operation),
      h("span", { class: "values" }, Object.entries(row.values).map(([name, value]) => [h("span", { class: "muted" }, name.replaceAll("_", " ")), " ", h("code", {}, value ?? "default"), " "]))),
    choose: (row) => {
      const snapshot = row?.values.new_snap_id;
      if (snapshot) app.go({ snapshot }, { keep: true });
    },
    key: (event, row) => {
      if (event.key === "Enter" && row?.values.new_snap_id) { app.go({ view: "history", snapshot: row.values.new_snap_id }); return true; }
      return false;
    },
  });
  fill(box, h("section", { class: "pane wide" },
    h("h2", { class: "bar" }, "Operations", h("span", { class: "muted" }, `${count(first.total, "entry", "entries")}, newest first`)), list.element));
  list.element.focus({ preventScroll: true });
  return {};
}
